"""WeiPer written out: one row, one copy of the head and one value at a time."""

import math

import numpy as np
from scipy.special import softmax


def histogram(row, low, high, bins, number=float):
    """The fraction of values in each bin, exact if ``number`` is Fraction.

    A bin includes its lower end, the last one its upper end too.
    """
    low, high = number(low), number(high)
    counts = [0] * bins
    for value in row:
        if not math.isfinite(value):
            continue
        exact = number(value)
        if low <= exact <= high:
            counts[min(bins - 1, math.floor((exact - low) * bins / (high - low)))] += 1
    return np.array([count / len(row) for count in counts])


def divergence(own, mean, width, floor):
    """``own`` smoothed by a box, its outermost bins repeated; both floored and normalised; KL in both directions."""
    bins = len(own)
    smoothed = []
    for place in range(bins):
        around = [place - width // 2 + step for step in range(width)]
        smoothed.append(math.fsum(own[min(max(index, 0), bins - 1)] for index in around) / width + floor)
    floored = [value + floor for value in mean]
    p = [value / math.fsum(floored) for value in floored]
    q = [value / math.fsum(smoothed) for value in smoothed]
    there = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    back = math.fsum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    return there + back


def scores(detector, heads, bias, train, test):
    """Scores of ``test`` under every copy of the head; ranges and mean histograms are those of ``train``."""

    def noisy(row):
        return np.array(
            [[float(np.dot(weights, row)) + b for weights, b in zip(head, bias, strict=True)] for head in heads]
        )

    train_logits = [noisy(row) for row in train]
    ends = min(map(np.min, train)), max(map(np.max, train))
    logit_ends = min(map(np.min, train_logits)), max(map(np.max, train_logits))
    mean = np.mean([histogram(row, *ends, detector.bins) for row in train], axis=0)
    logit_mean = np.mean([histogram(rows.ravel(), *logit_ends, detector.bins) for rows in train_logits], axis=0)
    found = []
    for row in test:
        logits = noisy(row)
        first = divergence(histogram(row, *ends, detector.bins), mean, detector.smooth, 0.01)
        own = histogram(logits.ravel(), *logit_ends, detector.bins)
        second = divergence(own, logit_mean, detector.smooth_logits, 0.025)
        confidence = sum(softmax(each).max() for each in logits) / len(logits)
        found.append(-first - detector.weight * second + detector.confidence * confidence)
    return np.array(found)
