"""Processes killed at any moment while they save a guard, save features or extract features.

After every kill the old or the new guard is loaded, also by readers that never stop reading. An extraction or a save
that is run again ends with what an uninterrupted one gives. Being refused is a failure here.
"""

import os
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
from support.snapshots import same
from torch import nn

from oodles.calibration import Threshold
from oodles.deploy.saving import load_guard, save_guard
from oodles.detectors import Detector, parse
from oodles.errors import OodlesError
from oodles.features import Features
from oodles.network import storing
from oodles.network.extraction import extract
from oodles.records.files import LOCK, TEMPORARY
from oodles.testing import example_features

from . import ACCEPTED

ROUNDS, SHORT, CHUNK = 1200, 24, 120
# The attacks ------------------------------------------------------------------------------------


def killed_guard(draw: random.Random, folder: Path) -> str:
    """One process saves two guards in turn, another reads; the writer is killed."""
    features = _features()
    place = folder / "guard"
    _save(place, 0)

    def save_for_ever() -> None:
        number = 0
        while True:
            number = 1 - number
            _save(place, number)

    def read() -> int:
        detector, threshold, _ = load_guard(place)
        number = int(threshold.value)
        assert torch.equal(detector.score(features), _versions()[number].score(features)), "a mixture of two guards"
        return number

    with _nothing_refused():
        end = time.monotonic() + draw.uniform(0, 0.03)
        with _child(save_for_ever) as child:
            while time.monotonic() < end:
                read()
            os.kill(child, signal.SIGKILL)
        survivor = read()
        _save(place, 1 - survivor)
        assert read() == 1 - survivor
    names = {path.name.partition("-")[0] for path in place.iterdir()}
    assert names == {LOCK, "guard.json", "guard"}, f"left over: {names}"
    assert len([*place.iterdir()]) == 3, "left over: tensors of another guard"
    return ACCEPTED


def killed_features(draw: random.Random, folder: Path) -> str:
    """A save of features in many shards is killed a few times, then repeated."""
    whole = _features()
    with _nothing_refused(), patch("oodles.features.SHARD_ELEMENTS", 200):
        for _ in range(draw.randint(1, 3)):
            with _child(lambda: whole.save(folder / "f")) as child:
                time.sleep(draw.uniform(0, 0.03))
                os.kill(child, signal.SIGKILL)
            if _is_complete(folder / "f"):
                break
        else:
            whole.save(folder / "f")
        same(Features.load(folder / "f"), whole)
    return ACCEPTED


def killed_extraction(draw: random.Random, folder: Path) -> str:
    """An extraction in many shards is killed a few times, then run to its end."""
    with _nothing_refused(), patch.object(storing, "SHARD_ELEMENTS", 200):
        for _ in range(draw.randint(1, 4)):
            with _child(lambda: _extract(folder / "s")) as child:
                time.sleep(draw.uniform(0, 0.08))
                os.kill(child, signal.SIGKILL)
        same(_extract(folder / "s"), _uninterrupted())
    assert not [*(folder / "s").glob(f".*{TEMPORARY}*")], "left over: temporary files"
    return ACCEPTED


@contextmanager
def _child(action: Callable[[], object]) -> Iterator[int]:
    """The action in a child process, which may be killed; if it is not, it must succeed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later versions of Python warn of forks beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        yield child
    finally:
        _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child ended with {status}"


@contextmanager
def _nothing_refused() -> Iterator[None]:
    try:
        yield
    except OodlesError as error:
        raise RuntimeError("something was lost") from error


# What is saved ----------------------------------------------------------------------------------


@cache
def _features() -> Features:
    return example_features(60)


@cache
def _versions() -> tuple[Detector, Detector]:
    return parse("knn(5)").fit(_features()), parse("react(90)+dice(0.7)+energy").fit(_features())


def _save(place: Path, number: int) -> None:
    save_guard(place, _versions()[number], Threshold(value=float(number), id_rate=0.9, calibration_size=60))


@cache
def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3)).eval()


def _extract(store: Path | None) -> Features:
    batches = torch.rand(20, 10, 8, generator=torch.Generator().manual_seed(0))
    return extract(_model(), list(batches), store=store, labels=False, progress=False)


@cache
def _uninterrupted() -> Features:
    return _extract(None)


def _is_complete(store: Path) -> bool:
    try:
        Features.load(store)
    except OodlesError:
        return False
    return True


CASES = {"guard.save": killed_guard, "Features.save": killed_features, "extract": killed_extraction}
SHARES = {"guard.save": 10.0}
