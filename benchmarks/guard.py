"""What a guard costs for one image: its time divided by that of the bare network, on one thread."""

import warnings
from functools import partial

import torch

from benchmarks.timing import paired
from oodles.guard import Guard
from oodles.models import load

NETWORK, REPEATS = "cifar10-small", 400


def ratios(detectors: tuple[str | None, ...] = ("dice(0.9)", None)) -> dict[str, float]:
    """Time of a guard divided by that of its network, for each detector; None is the default one."""
    model = load(NETWORK).eval()
    generator = torch.Generator().manual_seed(0)
    train = [torch.randn(64, 3, 32, 32, generator=generator) for _ in range(12)]
    image = train[0][:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noise is classified as one class
        guards = {detector or "default": Guard.fit(model, train, detector=detector) for detector in detectors}
    sides = {"network": partial(model, image)} | {name: partial(guard, image) for name, guard in guards.items()}
    with torch.no_grad():
        seconds = paired(sides, REPEATS)
    return {name: seconds[name] / seconds["network"] for name in guards}


def main() -> None:
    """Print the ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, ratio in ratios().items():
            print(f"guard with {name}, one image of {NETWORK}: {ratio:.2f} times the bare network")
    finally:
        torch.set_num_threads(threads)
