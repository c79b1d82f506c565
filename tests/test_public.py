"""The public names: each resolves to the right thing, loads on first use, and is what type checkers see."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import oodles
from oodles import errors

STUB = Path(oodles.__file__).with_suffix(".pyi")


def stub_imports():
    """Public name -> (module, name there), as written in the stub."""
    found = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1
            for alias in node.names:
                assert alias.asname == alias.name, "re-exported under its own name"
                found[alias.name] = (".".join(filter(None, ["oodles", node.module])), alias.name)
    return found


def test_every_public_name_resolves_and_no_other_does():
    assert len(oodles.__all__) <= 45
    assert len(set(oodles.__all__)) == len(oodles.__all__)
    for name in oodles.__all__:
        value = getattr(oodles, name)
        # a name that resolves to its neighbour would have another __name__
        assert value.__name__.rpartition(".")[2] == name
    assert set(oodles.__all__) <= set(dir(oodles))
    with pytest.raises(AttributeError, match="No oodles attribute nonsense"):
        _ = oodles.nonsense


def test_type_checkers_see_what_is_loaded():
    seen = stub_imports()
    assert set(seen) == set(oodles.__all__)
    for name, (module, attribute) in seen.items():
        try:
            expected = importlib.import_module(f"{module}.{attribute}")
        except ModuleNotFoundError:
            expected = getattr(importlib.import_module(module), attribute)
        assert getattr(oodles, name) is expected, name
    declared = [node.target.id for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.AnnAssign)]
    assert declared == ["__version__"]


def test_functions_stay_functions_after_every_submodule_is_imported():
    # importing oodles.x.y sets oodles.x, which must not replace a public function of the same name
    names = [module.name for module in pkgutil.walk_packages(oodles.__path__, "oodles.")]
    assert len(names) > 50
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    functions = {name for name in oodles.__all__ if inspect.isfunction(getattr(oodles, name))}
    assert {"benchmark", "calibrate", "combine", "conformal", "default_detector", "extract"} <= functions
    assert {"load_detector", "parse", "register", "save_detector", "select"} <= functions


def run_python(script):
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("setting", ["enable", "disable"])
def test_the_garbage_collector_is_left_as_it_was(setting):
    run_python(f"import gc, oodles; gc.{setting}(); oodles.DICE; assert gc.isenabled() == ({setting!r} == 'enable')")


def test_import_oodles_imports_nothing_heavy():
    run_python(
        "import sys, oodles\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'DICE' in dir(oodles)\n"
        "oodles.OodlesError\n"
        "assert 'torch' not in sys.modules\n"
    )


@pytest.mark.parametrize("name", ["detectors", "models", "selection"])
def test_submodules_load_on_first_use(name):
    run_python(
        "import sys, oodles as ood\n"
        f"assert 'oodles.{name}' not in sys.modules\n"
        f"assert ood.{name}.__name__ == 'oodles.{name}'\n"
        f"assert 'oodles.{name}' in sys.modules\n"
    )


def test_every_error_is_an_oodles_error_and_a_standard_one():
    standard = {
        "OodlesError": Exception,
        "ArgumentError": ValueError,
        "DataError": ValueError,
        "ShapeError": ValueError,
        "NotFittedError": RuntimeError,
        "HeadError": RuntimeError,
        "FileError": OSError,
        "MissingPackageError": ImportError,
    }
    kinds = dict(inspect.getmembers(errors, inspect.isclass))
    assert set(kinds) == {*standard, "FitWarning"}
    assert issubclass(kinds["FitWarning"], UserWarning)
    for name, kind in standard.items():
        assert issubclass(kinds[name], errors.OodlesError)
        assert issubclass(kinds[name], kind)
        assert getattr(oodles, name) is kinds[name]


def public_names():
    """Every class and function that is public, by the name that a user writes: in ``oodles``, or in a public module."""
    found = {}
    for name in oodles.__all__:
        value = getattr(oodles, name)
        if not inspect.ismodule(value):
            found.setdefault(id(value), (name, value))
            continue
        inside = getattr(value, "__all__", None) or [
            each for each, defined in vars(value).items() if getattr(defined, "__module__", None) == value.__name__
        ]
        for each in inside:
            part = getattr(value, each)
            if callable(part) and not each.startswith("_"):
                found.setdefault(id(part), (f"{name}.{each}", part))
    return dict(found.values())


def test_every_public_name_has_a_docstring_with_an_example_that_shows_a_result():
    names = public_names()
    assert len(names) > 120
    assert {"extract", "Guard", "select", "FileError", "bench.benchmark", "detectors.SCALE"} <= names.keys()
    # a class has a docstring of its own: that of its base says nothing about it
    for name, value in names.items():
        _, example, shown = (value.__doc__ or "").partition(">>>")
        assert example, f"{name} has no example"
        lines = [line.strip() for line in shown.splitlines()[1:]]
        assert any(line and not line.startswith((">>>", "...")) for line in lines), f"{name} shows no result"
