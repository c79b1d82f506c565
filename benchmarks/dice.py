"""DICE at ImageNet size (C = 1000, m = 2048), compared with dense energy and the broadcast form of other tools."""

import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.timing import paired
from oodles.detectors import DICE
from oodles.features import Features, Head
from oodles.functional import energy

CLASSES, WIDTH, ROWS, BROADCAST_ROWS = 1000, 2048, 4096, 32


def example(rows: int) -> Features:
    """Features of the size of a ResNet-50's; logits are computed from the head."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(CLASSES, WIDTH, generator=generator) * 0.03
    embedding = torch.randn(rows, WIDTH, generator=generator).relu()
    return Features(embedding, head=Head(weight, torch.zeros(CLASSES)))


def speed() -> dict[str, float]:
    """Seconds per row of each form."""
    features = example(ROWS)
    detector = DICE(p=0.7).fit(features)
    few = features.embedding[:BROADCAST_ROWS]
    head = features.head
    assert head is not None
    seconds = paired(
        {
            "dice": lambda: detector.score(features),
            "dense energy": lambda: torch.cat([energy(head(batch.embedding)) for batch in features.batches()]),
            "broadcast": lambda: energy((few[:, None, :] * detector.weight_).sum(dim=2) + detector.bias_),
        }
    )
    rows = {"dice": ROWS, "dense energy": ROWS, "broadcast": BROADCAST_ROWS}
    return {name: seconds[name] / rows[name] for name in seconds}


def peak_memory(rows: int = 16384) -> float:
    """Additional peak memory of scoring, as a multiple of the size of the logits; measured in a separate process."""
    code = f"from benchmarks.dice import measure_peak; measure_peak({rows})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    return float(done.stdout)


def measure_peak(rows: int) -> None:
    """Print by how much peak memory grows while ``rows`` rows are scored, divided by the size of their logits."""
    features = example(rows)
    detector = DICE(p=0.7).fit(features)
    detector.score(features[:64])
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = peak_bytes()
    detector.score(features)
    print((peak_bytes() - before) / (rows * CLASSES * 4))


def peak_bytes() -> int:
    """The peak memory of this process in bytes (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print the ratios."""
    per_row = speed()
    print(f"DICE takes {per_row['dice'] / per_row['dense energy']:.2f} times the dense energy (C=1000, m=2048)")
    print(f"the broadcast form takes {per_row['broadcast'] / per_row['dice']:.0f} times DICE")
    print(f"peak extra memory of scoring: {peak_memory():.2f} times the logits")
