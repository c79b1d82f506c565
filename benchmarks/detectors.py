"""Every detector fitted on 50,000 embeddings of a CIFAR-sized network and scored on 60,000: time and memory."""

import subprocess
import sys
import time

import torch

from benchmarks.dice import peak_bytes
from oodles.detectors import detector_list, fit_together
from oodles.features import Features, Head

TRAIN, TEST, WIDTH, CLASSES = 50_000, 60_000, 342, 10


def example(rows: int, seed: int) -> Features:
    """Rows like those of a ReLU network: non-negative, mostly near zero, classes separated."""
    shared = torch.Generator().manual_seed(0)
    centres = torch.rand(CLASSES, WIDTH, generator=shared) ** 4
    weight = centres - centres.mean(dim=0)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    embedding = (centres[labels] + 0.3 * torch.randn(rows, WIDTH, generator=generator)).relu()
    return Features(embedding, labels=labels, head=Head(weight, torch.zeros(CLASSES)))


def measure() -> None:
    """Print one line per detector and the totals; run in a separate process, so that its memory use can be measured."""
    train, test = example(TRAIN, 1), example(TEST, 2)
    detectors = detector_list()
    fit_together(detectors[:1], train[:1000])
    before = peak_bytes()
    began = time.perf_counter()
    seconds = {}
    for detector in detectors:
        start = time.perf_counter()
        detector.fit(train)
        fitted = time.perf_counter()
        detector.score(test)
        seconds[detector.spec] = fitted - start, time.perf_counter() - fitted
    total = time.perf_counter() - began
    for spec, (fit, score) in sorted(seconds.items(), key=lambda pair: -sum(pair[1])):
        print(f"{spec:40} fit {fit:6.2f} s  score {score:6.2f} s  {100 * (fit + score) / total:5.1f} %")
    print(f"{len(detectors)} detectors, {TRAIN:,} rows to fit and {TEST:,} to score: {total:.1f} s")
    print(f"peak memory beyond the data: {(peak_bytes() - before) / 1e9:.2f} GB")


def main() -> None:
    """Measure in a fresh process."""
    code = "from benchmarks.detectors import measure; measure()"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)  # noqa: S603
