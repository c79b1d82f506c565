"""Running an exported guard leaves nothing behind that onnxruntime would report its use with."""

import subprocess
import sys
from pathlib import Path

from support.exported_guards import export

import oodles

SCRIPT = "import sys; from oodles.deploy.exported import ExportedGuard; ExportedGuard.open(sys.argv[1])"


def test_onnxruntime_reports_nothing(tmp_path):
    """It keeps an id of the machine and its reports in the user's cache, unless it is told not to before its import."""
    guard, home = export("vectors", tmp_path / "guard.zip"), tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), "PYTHONPATH": str(Path(oodles.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", SCRIPT, guard], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(home.rglob("*")) == []
