"""Exported guards in parts, to be altered, and a folder for what is made of them."""

import pytest
from support import exported_guards as made


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return {kind: made.parts_of(made.export(kind, folder / f"{kind}.zip")) for kind in made.KINDS}


@pytest.fixture
def parts(originals):
    return originals["vectors"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, beside an empty working folder."""
    (tmp_path / "work").mkdir()
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "place"
