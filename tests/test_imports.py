"""The direction of imports, and limits on the size of modules and of the base class."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import oodles
from oodles.detectors.base import Detector

PACKAGE = Path(oodles.__file__).parent


@pytest.mark.parametrize("module", ["oodles.detectors", "oodles.functional", "oodles.metrics", "oodles.calibration"])
def test_arithmetic_on_features_does_not_import_code_that_runs_networks(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        f"assert {module!r} in sys.modules\n"
        "found = sorted(name for name in sys.modules if name.startswith('oodles.network'))\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_no_module_is_longer_than_400_lines() -> None:
    modules = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    assert len(modules) > 50
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_the_base_class_of_detectors_is_small() -> None:
    assert len(inspect.getsource(Detector).splitlines()) < 160
