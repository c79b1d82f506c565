"""The public names: all there, each the thing it should be, and cheap to import."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import oodles
from oodles import errors


def test_every_public_name_resolves_and_no_other_does():
    for name in oodles.__all__:
        value = getattr(oodles, name)
        # a class or function says where it comes from; a name that resolves to a neighbour would differ
        assert getattr(value, "__name__", name).rpartition(".")[2] == name
    assert oodles.__all__ == sorted(set(oodles.__all__))
    assert dir(oodles) == oodles.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = oodles.nonsense


def test_functions_stay_functions_whatever_was_imported():
    for module in ("extraction", "calibration", "bench", "bench.run", "features", "guard", "metrics", "detectors"):
        importlib.import_module(f"oodles.{module}")
    for name in ("extract", "calibrate", "benchmark", "evaluate", "parse", "energy"):
        assert inspect.isfunction(getattr(oodles, name)), name
    for name in ("DICE", "Features", "Guard", "Threshold", "Row"):
        assert inspect.isclass(getattr(oodles, name)), name
    for name in ("functional", "metrics", "models", "testing"):
        assert inspect.ismodule(getattr(oodles, name)), name


def test_what_type_checkers_see_is_what_is_loaded():
    tree = ast.parse(Path(oodles.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "re-exported under its own name"
            seen[alias.name] = node.module
    assert seen == oodles._HOME
    assert set(seen) | {"__version__"} == set(oodles.__all__)


def test_the_version_is_that_of_the_project():
    project = Path(oodles.__file__).parents[2] / "pyproject.toml"
    assert f'\nversion = "{oodles.__version__}"\n' in project.read_text()


def test_importing_alone_is_light():
    script = (
        "import sys, oodles\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'DICE' in dir(oodles)\n"
        "oodles.OodlesError\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_every_error_is_ours_and_also_the_ordinary_kind():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(kinds) >= 6
    ordinary = {
        "ArgumentError": ValueError,
        "DataError": ValueError,
        "ShapeError": ValueError,
        "NotFittedError": RuntimeError,
        "HeadError": RuntimeError,
        "FileError": OSError,
    }
    for kind in kinds:
        assert issubclass(kind, errors.OodlesError)
        assert issubclass(kind, ordinary.get(kind.__name__, Exception))
