"""Training in a separate process: alone, under torchrun, killed while it writes a file, or without space for one.

usage: training_worker.py OUT [kill|fill|untidy FILE]
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from support.networks import seeded
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.data.loaders import Pixels
from oodles.data.transforms import Transform
from oodles.training import Recipe, train

PLAIN = Transform(8, 8, (0.5,) * 3, (0.25,) * 3)
UNEVEN = Recipe(epochs=3, batch_size=7, learning_rate=0.05)
"""With 47 images: batches of 7, which two processes cannot divide evenly, and a last batch of 5."""


def coloured(rows: int = 47, classes: int = 3, *, size: int = 8, seed: int = 0) -> Pixels:
    """Noisy images whose class is their brightest channel."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    pixels = torch.randint(0, 120, (rows, 3, size, size), generator=generator, dtype=torch.uint8)
    pixels[torch.arange(rows), labels] += 130
    return Pixels("coloured", pixels, labels, Transform(size, size, PLAIN.mean, PLAIN.std))


class Tiny(nn.Module):
    """A convolution and a linear layer: no image's output depends on the rest of the batch."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc = nn.Linear(6, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(images)).mean(dim=(2, 3)))


class Stateful(nn.Module):
    """Batch norm and dropout: state besides the weights, and randomness besides the order of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.bn(self.conv(images))).mean(dim=(2, 3))
        return self.fc(F.dropout(hidden, 0.3, self.training))


FAULTS = {"kill": ("os.rename", ".", 2), "fill": ("open", ".", 2), "untidy": ("os.remove", "", 1)}
"""The audit event, the prefix of the file name, and the occurrence at which the fault happens."""


def _creates(opened: tuple[Any, ...]) -> bool:
    return bool(opened[2] & os.O_EXCL)


def inject(fault: str, file: str) -> None:
    """Kill the process before ``file`` is renamed into place or an old one is deleted, or leave no space for it."""
    trigger, prefix, occurrence = FAULTS[fault]
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event != trigger or not Path(str(arguments[0])).name.startswith(prefix + file):
            return
        seen += event != "open" or _creates(arguments)  # a file is opened again to write it, and to force it to disk
        if seen == occurrence and fault == "fill":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        elif seen == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main() -> None:
    out, *fault = sys.argv[1:]
    if fault:
        inject(*fault)
    created = []
    sys.addaudithook(
        lambda event, arguments: created.append(arguments[0]) if event == "open" and _creates(arguments) else None
    )
    model = seeded(Stateful if fault else Tiny)
    metrics = train(model, coloured(), out=out, recipe=UNEVEN, seed=5, progress=False)
    # in a single write: two processes may print at once
    sys.stdout.write(f"{len(metrics)} epochs, {sum(out in str(path) for path in created)} files\n")


if __name__ == "__main__":
    main()
