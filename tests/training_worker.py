"""Training in a process of its own: alone, under torchrun, killed while it writes a file, or out of room for one.

usage: training_worker.py OUT [kill|fill|untidy FILE]
"""

import os
import resource
import signal
import sys
from pathlib import Path

import torch
from networks import seeded
from torch import Tensor, nn
from torch.nn import functional as F

import oodles
from oodles.bench.datasets import Pixels, Transform

PLAIN = Transform(8, 8, (0.5,) * 3, (0.25,) * 3)
UNEVEN = oodles.Recipe(epochs=3, batch=7, rate=0.05)
"""With 47 rows: batches of 7, which two processes cannot halve, and 5 rows in the last."""


def coloured(rows: int = 47, classes: int = 3, *, size: int = 8, seed: int = 0) -> Pixels:
    """Noisy pictures whose class is the channel that is brightest."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    pixels = torch.randint(0, 120, (rows, 3, size, size), generator=chance, dtype=torch.uint8)
    pixels[torch.arange(rows), labels] += 130
    return Pixels("coloured", pixels, labels, Transform(size, size, PLAIN.mean, PLAIN.std))


class Tiny(nn.Module):
    """A convolution and a linear layer: nothing in it depends on the rest of a batch."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc = nn.Linear(6, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(images)).mean(dim=(2, 3)))


class Restless(nn.Module):
    """Batch norm and dropout: state besides the weights, and chance besides the order of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.bn(self.conv(images))).mean(dim=(2, 3))
        return self.fc(F.dropout(hidden, 0.3, self.training))


def network(kind: type[nn.Module]) -> nn.Module:
    return seeded(kind)


FATES = {"kill": ("open", ".", 2), "fill": ("tempfile.mkstemp", ".", 2), "untidy": ("os.remove", "", 1)}
"""What Python does just then, how the name of the file begins, and for which time."""


def await_fate(fate: str, file: str) -> None:
    """Be killed with ``file`` written but not in its place, out of room for it, or killed before an old one goes."""
    moment, prefix, turn = FATES[fate]
    seen = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event != moment or not Path(str(arguments[0])).name.startswith(prefix + file):
            return
        # a file is opened three times: made, filled, and opened for update to force it to disk
        seen += event != "open" or "+" in str(arguments[1])
        if seen == turn and fate == "fill":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        elif seen == turn:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main() -> None:
    out, *fate = sys.argv[1:]
    if fate:
        await_fate(*fate)
    made = []
    sys.addaudithook(lambda event, arguments: made.append(arguments[0]) if event == "tempfile.mkstemp" else None)
    model = network(Restless if fate else Tiny)
    metrics = oodles.train(model, coloured(), out=out, recipe=UNEVEN, seed=5, progress=False)
    # in one piece: two processes may write at once
    sys.stdout.write(f"{len(metrics)} epochs, {sum(out in str(path) for path in made)} files\n")


if __name__ == "__main__":
    main()
