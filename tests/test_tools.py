"""The scripts beside the package fit it: each can be imported."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import runpy, sys
root, *paths = sys.argv[1:]
sys.path[:0] = [root, root + "/tools"]
for path in paths:
    runpy.run_path(path, run_name="imported")
"""


def test_scripts_import_only_what_the_package_has() -> None:
    scripts = [*sorted((ROOT / "tools").glob("*.py")), ROOT / "benchmarks" / "__main__.py"]
    command = [sys.executable, "-c", IMPORT_ALL, str(ROOT), *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
