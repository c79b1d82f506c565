"""What several test files share: the real data, and small features to learn from."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from oodles import cli
from oodles.features import Features
from oodles.testing import example_features

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import onnxruntime themselves
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # processes that meet would warn where host names cannot be resolved
os.environ.pop("PYTHONUNBUFFERED", None)  # it hides what a process forgets to flush

# the same examples every time, so that a check that passed passes again; HYPOTHESIS_PROFILE=default looks for new ones
settings.register_profile("steady", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# examples are looked for in every file, and this one needs what only `make check-more` installs
collect_ignore = [] if find_spec("selenium") else ["support/browser.py"]


def pytest_runtest_setup():
    """Start every test from the same random numbers: a network with dead units would warn in one run of many."""
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real images and the paper's own networks: ``OODLES_DATA``, else ``../shared/data``."""
    named = os.environ.get("OODLES_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; point OODLES_DATA at the folder that holds it")
    return folder


@pytest.fixture
def features() -> Features:
    """Features as a small ReLU network gives them, with labels and a head."""
    return example_features(rows=120, width=12, classes=4, seed=3)


@pytest.fixture
def oodles_run(workspace, monkeypatch, capsys):
    """Run ``main`` in the file's own ``workspace`` as the shell would: arguments in, exit code and both streams out."""
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["oodles", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        streams = capsys.readouterr()
        return ended.value.code or 0, streams.out, streams.err

    return run
