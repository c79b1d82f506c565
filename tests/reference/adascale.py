"""AdaSCALE written out row by row: the input step, how far it moves a row, and the percentile that follows from it."""

import math
from fractions import Fraction

import numpy as np
import torch
from scipy.special import logsumexp


def ratio(row, kept):
    """The sum of a row's positive values over the sum of the ``kept`` largest."""
    positive = sorted((max(value, 0.0) for value in row), reverse=True)
    top = math.fsum(positive[:kept])
    return 1.0 if top == 0 else min(math.fsum(positive) / top, 80.0)


def step(image, gradient, epsilon, share, std=()):
    """One image: the values whose gradient is at most the k-th smallest move against the gradient's sign."""
    sizes = sorted(abs(value) for value in gradient.ravel())
    limit = sizes[max(1, round(share * len(sizes))) - 1]
    after = image.copy()
    for place in np.ndindex(*image.shape):
        size = epsilon / std[place[0]] if std else epsilon
        if abs(gradient[place]) <= limit and gradient[place] != 0:
            after[place] += -size if gradient[place] > 0 else size
    return after


def embeddings_after_step(model, images, epsilon, share):
    """The embeddings of images moved up the gradient of their own largest logit, one image at a time."""
    embeddings = []
    for image in images:
        leaf = image.clone()[None].requires_grad_()
        logits = model(leaf)[0]
        (gradient,) = torch.autograd.grad(logits[int(logits.argmax())], leaf)
        flat, start = gradient.flatten().tolist(), image.flatten().tolist()
        smallest = sorted(range(len(flat)), key=lambda place: abs(flat[place]))[: round(share * len(flat))]
        for place in smallest:
            start[place] += epsilon if flat[place] > 0 else -epsilon if flat[place] < 0 else 0
        with torch.no_grad():
            embeddings.append(model.embed(torch.tensor(start, dtype=image.dtype).view_as(leaf))[0])
    return torch.stack(embeddings)


def movement(row, after, shift):
    """How far the largest 1 % of the units move, and how large the largest 5 % are afterwards."""
    order = sorted(range(len(row)), key=lambda unit: -row[unit])
    gap = math.fsum(abs(row[unit] - after[unit]) for unit in order[: max(1, int(len(row) * 1 / 100))])
    left = math.fsum(max(after[unit], 0.0) for unit in order[: max(1, int(len(row) * 5 / 100))])
    return shift * gap + left


def kept_units(width, low, high, below):
    """Units kept if the fraction ``below`` of held-out images moves at most as far; exact, halves rounded to even."""
    percentile = Fraction(low) + (1 - below) * (Fraction(high) - Fraction(low))
    return max(1, width - round(width * percentile / 100))


def scores(detector, weight, bias, held_out, test):
    """Scores of ``test``; it and ``held_out`` are pairs of embeddings before and after the step."""
    seen = [movement(row, after, detector.shift) for row, after in zip(*held_out, strict=True)]
    found = []
    for row, after in zip(*test, strict=True):
        own = movement(row, after, detector.shift)
        below = Fraction(sum(value <= own for value in seen), len(seen))
        factor = ratio(row, kept_units(len(row), detector.low, detector.high, below))
        if detector.scaled == "embedding":
            found.append(logsumexp(weight @ (math.exp(factor) * row) + bias))
        else:
            found.append(logsumexp(factor**2 * (weight @ row + bias)))
    return np.array(found)
