"""What a guard costs beside its bare network, and exported beside itself: one thread, several sizes of a batch."""

import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from oodles.guard import Guard
from oodles.models import load
from studies.bench.results import Row, cost, sides
from studies.timing import paired

NETWORK = "cifar10-small"
TARGETS: dict[str, dict[int, float | None]] = {
    "dice(0.9)": {1: 1.05, 8: 1.05, 64: 1.05},
    "default": {1: 1.3, 8: None, 64: 1.1},
}


def run(quick: bool = False) -> Iterator[Row]:
    """A guard with DICE and one with the default detector."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _measure((1,) if quick else (1, 8, 64), budget=2.0 if quick else 8.0)
    finally:
        torch.set_num_threads(threads)


def _measure(batches: tuple[int, ...], budget: float) -> Iterator[Row]:
    model = load(NETWORK).eval()
    generator = torch.Generator().manual_seed(0)
    train = [torch.randn(64, 3, 32, 32, generator=generator) for _ in range(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noise is classified as one class
        guards = {name: Guard.fit(model, train, detector=None if name == "default" else name) for name in TARGETS}
    with tempfile.TemporaryDirectory() as folder:
        for name, guard in guards.items():
            guard.export(Path(folder) / f"{name}.zip")
        exported = {name: Guard.open(Path(folder) / f"{name}.zip", threads=1) for name in guards}
    for size in batches:
        images = train[0][:size]
        calls = {"network": partial(model, images)} | {name: partial(guard, images) for name, guard in guards.items()}
        calls |= {f"exported {name}": partial(guard, images.numpy()) for name, guard in exported.items()}
        with torch.no_grad():
            times = paired(calls, budget=budget, most=400)
        for name, target in TARGETS.items():
            label = f"{name}, batch of {size} image{'' if size == 1 else 's'}"
            yield cost(label, f"{NETWORK} alone", sides(times, name, "network"), target=target[size])
            limit = 1.0 if size == 1 else None
            yield cost(f"exported: {label}", "the guard in torch", sides(times, f"exported {name}", name), target=limit)
