"""Saved detectors, guards and features that were altered, by accident and on purpose.

By accident: bytes change, files are cut, lost or exchanged. What is then loaded must be equal to what was saved. On
purpose: fields and tensors are replaced and all checksums computed again. What is then loaded may be something else,
but it must be able to score, and nothing whose score is not finite may be in-distribution. Every error is one line.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from oodles.calibration import calibrate
from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import Detector, parse
from oodles.features import Features
from oodles.guard import Guard
from oodles.network.extraction import extract
from oodles.testing import example_features, fit_and_tune, with_passes

from . import ACCEPTED, NON_FINITE
from .alterations import change_field, damaged, damaged_tensors, files, in_one_line, lose_files, sealed, strange_text

ROUNDS, SHORT, CHUNK = 10_000, 90, 500

SPECS = (
    *("msp", "gen", "react(90)+dice(0.7)+energy", "ash_s", "optfs", "vra", "temp_scale", "openmax", "kl_matching"),
    *("knn(5)", "nnguide", "mahalanobis", "rmds", "ddu", "vim", "neco", "pnml", "fdbd", "cadref", "she", "default"),
    *("weiper(5)", "rank_ensemble(['dice', 'knn'], 'fisher')", "odin", "adascale", "rankfeat", "gram(['a', 'b'])"),
    *("mahalanobis(['a'], epsilon=0.01)", "rank_ensemble(['odin', 'knn'])", "rank_ensemble(['msp', 'energy'])"),
)
GUARDED, KEY = ("dice(0.7)", "default", "msp"), b"k" * 16
TENSORS: tuple[Callable[[Tensor], Tensor], ...] = (
    *(lambda t: t[..., :-1] if t.ndim else t.repeat(3), lambda t: torch.cat([t, t]) if t.ndim else t[None]),
    *(lambda t: t[None], lambda t: t.flatten(), lambda t: t.T if t.ndim == 2 else t.repeat(2)),
    *(lambda t: t.double(), lambda t: t.half(), lambda t: t.bfloat16(), lambda t: t.long(), lambda t: t.bool()),
    *(lambda t: t.to(torch.complex64), lambda t: t.to(torch.uint8), lambda t: t.to(torch.float8_e4m3fn)),
    *(lambda t: t * torch.nan, lambda t: t + torch.inf, lambda t: t - torch.inf, lambda t: _one_element(t, torch.nan)),
    *(lambda t: _one_element(t, -torch.inf), lambda t: t * 0, lambda t: -t, lambda t: t * 1e30, lambda t: t + 2**40),
    *(lambda t: torch.zeros(()), lambda t: torch.zeros(0), lambda t: t[:0] if t.ndim else t),
    *(lambda t: torch.zeros(1, 1, 1, 1), lambda t: torch.rand(7, 3)),
)


def _one_element(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone().float()
    if changed.numel():
        changed.view(-1)[-1] = value
    return changed


# What is attacked -------------------------------------------------------------------------------


@cache
def _original(kind: str, number: int) -> Path:
    """The folder of something that is saved once and copied for each attack."""
    folder = Path(mkdtemp(prefix="artefacts-")) / kind
    images = torch.rand(200, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    if kind == "detectors":
        save_detector(_fitted(SPECS[number])[0], folder)
    elif kind == "guards":
        guard = Guard.fit(_model(), [images], detector=GUARDED[number], labels=False)
        guard.save(folder, key=KEY if number else None)
    elif number == 0:
        example_features(90).save(folder)
    elif number == 1:
        batches = [images[:50], images[50:]]
        extract(_model(), batches, store=folder, progress=False, classes=list("abcde"), labels=False)
    else:
        Features(logits=example_features(90).logits).save(folder, dtype=torch.float16)
    return folder


@cache
def _fitted(spec: str) -> tuple[Detector, Features]:
    detector = parse(spec)
    features = with_passes(detector, example_features(80))
    return fit_and_tune(detector, features), features


@cache
def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5)).eval()


def _copy(kind: str, number: int, place: Path) -> Path:
    return Path(shutil.copytree(_original(kind, number), place / "copy"))


# The attacks ------------------------------------------------------------------------------------


def damaged_detector(draw: random.Random, place: Path) -> str:
    number = draw.randrange(len(SPECS))
    folder = _copy("detectors", number, place)
    alike = alter(draw, folder, "detector.json")
    original, features = _fitted(SPECS[number])
    detector = in_one_line(lambda: load_detector(folder))
    scores = in_one_line(lambda: detector.score(features))
    return _judge(scores, original.score(features) if alike else None)


def damaged_guard(draw: random.Random, place: Path) -> str:
    number = draw.randrange(3)
    folder = _copy("guards", number, place)
    alike = alter(draw, folder, "guard.json")
    images = torch.rand(6, 3, 2, 2, generator=torch.Generator().manual_seed(2))
    original = Guard.load(_original("guards", number), _model())(images)
    key = KEY if number and draw.random() < 0.3 else None
    guard = in_one_line(lambda: Guard.load(folder, _model(), key=key))
    verdict = in_one_line(lambda: guard(images))
    if bool(verdict.is_id[~verdict.score.isfinite()].any()):
        return NON_FINITE
    assert key is None or torch.equal(verdict.score, original.score), "a signed guard was altered"
    return _judge(verdict.score, original.score if alike else None)


def damaged_features(draw: random.Random, place: Path) -> str:
    number = draw.randrange(3)
    folder = _copy("features", number, place)
    alike = alter(draw, folder, "manifest.json")

    def read(path: Path) -> list[Tensor]:
        features = Features.load(path)
        detector = parse("energy")
        threshold = calibrate(detector.score(features), 0.5)
        parts = [features.logits, features.embedding, detector.score(features), torch.tensor(threshold.value)]
        return [*parts, *([] if features.labels is None else [features.labels])]

    found = in_one_line(lambda: read(folder))
    if not all(bool(part.isfinite().all()) for part in found):
        return NON_FINITE
    if alike:
        pairs = zip(found, read(_original("features", number)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs), "damage was not noticed"
    return ACCEPTED


def _judge(scores: Tensor, original: Tensor | None) -> str:
    """``original`` if the artefact was damaged by accident."""
    assert original is None or torch.equal(scores, original), "damage was not noticed"
    return NON_FINITE if bool(scores.isinf().any()) else ACCEPTED


# Alterations ------------------------------------------------------------------------------------


def alter(draw: random.Random, folder: Path, record: str) -> bool:
    """Damage a folder; True if what is loaded afterwards has to be what was saved."""
    kind = draw.choice(
        ("bytes", "bytes", "files", "field", "field", "field", "tensor", "tensor", "raw tensors", "text")
    )
    path = folder / record
    if kind == "bytes":
        file = draw.choice(files(folder))
        file.write_bytes(damaged(draw, file.read_bytes()))
        return True
    if kind == "files":
        lose_files(draw, folder)
        return True
    content = {name: value for name, value in json.loads(path.read_text()).items() if name != "seal"}
    if kind == "field":
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            change_field(draw, content)
    elif kind == "tensor":
        _change_tensors(draw, folder, content)
    elif kind == "raw tensors":
        entry = draw.choice(_entries(content))
        file = folder / entry["file"]
        _replace_file(file, entry, damaged_tensors(draw, file.read_bytes()))
    path.write_text(sealed(content))
    if kind == "text":
        path.write_text(strange_text(draw, path.read_text()))
    return False


def _entries(content: dict[str, Any]) -> list[dict[str, Any]]:
    """What in a record names a file of tensors."""
    found = [content.get("tensors"), content.get("head"), *content.get("shards", ())]
    return [entry for entry in found if isinstance(entry, dict)]


def _change_tensors(draw: random.Random, folder: Path, content: dict[str, Any]) -> None:
    entry = draw.choice(_entries(content))
    file = folder / entry["file"]
    tensors = load_file(file)
    for _ in range(draw.choice((1, 1, 3))):
        name = draw.choice([*tensors, "shape_", "x_"])
        match draw.randrange(8):
            case 0:
                tensors.pop(name, None)
            case 1:
                tensors[draw.choice(("x", "shape_", "choice_", name + "_", *tensors))] = torch.rand(2)
            case 2 if tensors:
                tensors[name] = tensors[draw.choice([*tensors])]
            case _ if name in tensors:
                tensors[name] = draw.choice(TENSORS)(tensors[name])
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file)
    _replace_file(file, entry, file.read_bytes())


def _replace_file(file: Path, entry: dict[str, Any], content: bytes) -> None:
    file.write_bytes(content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    if "bytes" in entry:
        entry["bytes"] = len(content)


CASES = {"detectors": damaged_detector, "guards": damaged_guard, "features": damaged_features}
