"""``extract`` compared with a plain loop over large NCHW batches, on the paper's DenseNet with random weights."""

import torch

from benchmarks.timing import paired
from oodles.models import densenet101
from oodles.network.extraction import extract

ROWS = 256


def main() -> None:
    """Print the ratio."""
    torch.manual_seed(0)
    model = densenet101(10).eval()
    images = torch.randn(ROWS, 3, 32, 32)

    def plain() -> None:
        with torch.no_grad():
            for batch in torch.split(images, 128):
                model(batch)

    def bare() -> None:
        with torch.no_grad():
            for batch in torch.split(images, 32):
                model(batch.contiguous(memory_format=torch.channels_last))

    seconds = paired(
        {"plain": plain, "bare": bare, "extract": lambda: extract(model, [images], progress=False)}, repeats=3
    )
    print(f"a plain loop (NCHW, 128 rows) takes {seconds['plain'] / seconds['extract']:.2f} times extract")
    print(f"extract takes {seconds['extract'] / seconds['bare']:.2f} times the bare network (channels-last, 32 rows)")
