"""Optional packages: the line that says what to install, and that every package is in the extra that it names."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from oodles.errors import MissingPackageError
from oodles.extras import PACKAGES, needed_by

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# what installs it, if that has another name
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "prometheus_client": "prometheus-client",
    "starlette": "fastapi",
    "fastapi_offline": "fastapi-offline",
}


def required(entries):
    return {re.split(r"[\[<>=]", entry)[0] for entry in entries}


@pytest.mark.parametrize("module", PACKAGES)
def test_the_extra_of_a_package_installs_it(module):
    _, extra = PACKAGES[module]
    name = DISTRIBUTIONS.get(module, module)
    assert name in required(EXTRAS[extra])
    assert name not in required(PROJECT["dependencies"]), "it is optional"


def test_all_is_every_extra_for_users():
    named = re.fullmatch(r"oodles\[(.*)\]", EXTRAS["all"][0])[1].split(",")
    assert sorted(named) == sorted(EXTRAS.keys() - {"all", "bench", "browser", "dev", "docs"})
    assert "oodles[torch,serve,text]" in EXTRAS["dev"]


def test_the_line_names_the_user_the_package_and_the_command():
    with pytest.raises(MissingPackageError) as caught, needed_by("reading tables"):
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    line = "reading tables needs scikit-learn, which is not installed; install it with: pip install 'oodles[layers]'"
    assert str(caught.value) == line
    assert caught.value.name == "sklearn"


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'mynets'", name="mynets"),
        ModuleNotFoundError("No module named 'torch.nonsense'", name="torch.nonsense"),
        ImportError("libcudart.so.12: cannot open shared object file", name="torch"),
    ],
)
def test_other_errors_are_left_alone(error):
    with pytest.raises(type(error)) as caught, needed_by("anything"):
        raise error
    assert caught.value is error


def test_a_part_of_a_missing_package_is_that_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "sklearn.linear_model", raising=False)
    with pytest.raises(MissingPackageError, match=r"^fitting needs scikit-learn"), needed_by("fitting"):
        import_module("sklearn.linear_model")


def test_the_innermost_user_is_named():
    inner, outer = needed_by("resnet50"), needed_by("oodles bench")
    with pytest.raises(MissingPackageError, match=r"^resnet50 needs torchvision"), outer, inner:
        raise ModuleNotFoundError(name="torchvision")
