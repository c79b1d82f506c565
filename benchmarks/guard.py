"""What a guard costs: its time divided by that of its bare network, on one thread, for several sizes of a batch."""

import warnings
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.results import Row, cost, sides
from benchmarks.timing import paired
from oodles.guard import Guard
from oodles.models import load

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
    for size in batches:
        images = train[0][:size]
        calls = {"network": partial(model, images)} | {name: partial(guard, images) for name, guard in guards.items()}
        with torch.no_grad():
            times = paired(calls, budget=budget, most=400)
        for name, target in TARGETS.items():
            plural = "" if size == 1 else "s"
            label = f"{name}, batch of {size} image{plural}"
            yield cost(label, f"{NETWORK} alone", sides(times, name, "network"), target=target[size])
