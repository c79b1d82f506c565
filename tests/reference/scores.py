"""Scores of one row of logits at a time, term by term, in Python floats."""

import math
from collections.abc import Sequence


def probabilities(row: Sequence[float], temperature: float = 1.0) -> list[float]:
    top = max(row)
    powers = [math.exp((value - top) / temperature) for value in row]
    return [power / math.fsum(powers) for power in powers]


def energy(row: Sequence[float], temperature: float = 1.0) -> float:
    top = max(row)
    total = math.fsum(math.exp((value - top) / temperature) for value in row)
    return top + temperature * math.log(total)


def msp(row: Sequence[float], temperature: float = 1.0) -> float:
    return math.log(max(probabilities(row, temperature)))


def doctor(row: Sequence[float], temperature: float = 1.0) -> float:
    """``(1 - g) / g`` from the pairs of different classes, of which ``1 - g`` is the sum."""
    p = probabilities(row, temperature)
    differ = math.fsum(a * b for i, a in enumerate(p) for j, b in enumerate(p) if i != j)
    return -differ / math.fsum(a * a for a in p)


def max_logit(row: Sequence[float]) -> float:
    largest = row[0]
    for value in row:
        if value > largest:
            largest = value
    return largest


def entropy(row: Sequence[float], temperature: float = 1.0) -> float:
    # 0 log 0 is 0
    return math.fsum(p * math.log(p) for p in probabilities(row, temperature) if p > 0)
