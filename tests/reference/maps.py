"""RankFeat and Gram written out in float64: a full singular value decomposition, explicit Gram matrices."""

import math

import numpy as np


def without_first_component(matrix):
    """A matrix of channels by positions without its first singular component, averaged over positions."""
    left, values, right = np.linalg.svd(np.asarray(matrix, dtype=np.float64), full_matrices=False)
    return (matrix - values[0] * np.outer(left[:, 0], right[0])).mean(axis=1)


def singular_values(matrix):
    return np.linalg.svd(np.asarray(matrix, dtype=np.float64), compute_uv=False)


def gram_row_sums(matrix, orders):
    """For each order the Gram matrix of the powers, the sums of its rows, and their signed roots."""
    sums = []
    for order in range(1, orders + 1):
        power = np.asarray(matrix, dtype=np.float64) ** order
        for row in power @ power.T:
            total = math.fsum(row)
            sums.append(math.copysign(abs(total) ** (1 / order), total))
    return np.array(sums)


def rankfeat_score(matrix, weight, bias):
    logits = np.asarray(weight, dtype=np.float64) @ without_first_component(matrix) + bias
    return float(np.logaddexp.reduce(logits))


def deviation(row, low, high):
    total = 0.0
    for value, least, most in zip(row, low, high, strict=True):
        if value < least:
            total += (least - value) / (abs(least) + 1e-6)
        if value > most:
            total += (value - most) / (abs(most) + 1e-6)
    return total


def gram_scores(learned, held_out, test):
    """Scores of ``test``; each argument is a list of rows ``(layers, logits)``, ``layers`` a list of vectors."""
    layers = range(len(learned[0][0]))
    bounds = {}
    for vectors, logits in learned:
        for layer in layers:
            low, high = bounds.setdefault((int(np.argmax(logits)), layer), (vectors[layer], vectors[layer]))
            bounds[int(np.argmax(logits)), layer] = np.minimum(low, vectors[layer]), np.maximum(high, vectors[layer])

    def deviations(vectors, logits):
        return [deviation(vectors[layer], *bounds[int(np.argmax(logits)), layer]) for layer in layers]

    usual = np.mean([deviations(*row) for row in held_out], axis=0)
    usual[usual == 0] = 1
    scores = []
    for vectors, logits in test:
        largest = math.exp(max(logits) - np.logaddexp.reduce(logits))
        scores.append(-math.fsum(np.array(deviations(vectors, logits)) / usual) / largest)
    return np.array(scores)
