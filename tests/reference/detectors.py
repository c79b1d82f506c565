"""Detectors written out row by row and class by class in float64, as the papers define them.

Each takes training embeddings, logits and labels, the head, and test embeddings and logits, and gives one score per
test row.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from reference import adascale
from reference.gradient import class_means, distance, within
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp, softmax

Array = np.ndarray


@dataclass(frozen=True)
class Rows:
    """Training embeddings ``h``, logits ``z`` and labels ``y``, the head, and the rows to score."""

    h: Array
    z: Array
    y: Array
    weight: Array
    bias: Array
    test_h: Array
    test_z: Array


def energy(z: Array) -> float:
    return float(logsumexp(z))


def kept(width: int, percentile: float) -> int:
    return max(1, width - round(width * percentile / 100))


def top_units(h: Array, percentile: float) -> Array:
    """The indices of one row's largest units."""
    return np.argsort(-h, kind="stable")[: kept(len(h), percentile)]


def ratio(h: Array, percentile: float) -> float:
    return adascale.ratio(h, kept(len(h), percentile))


def on_top(h: Array, percentile: float, values: Array) -> Array:
    """The values at one row's largest units, and zeros elsewhere."""
    return np.where(np.isin(np.arange(len(h)), top_units(h, percentile)), values, 0.0)


def shaped(rows: Rows, shape, score=energy) -> Array:
    return np.array([score(rows.weight @ shape(h) + rows.bias) for h in rows.test_h])


def ash_p(rows: Rows, percentile: float) -> Array:
    return shaped(rows, lambda h: on_top(h, percentile, h))


def ash_b(rows: Rows, percentile: float) -> Array:
    def shape(h: Array) -> Array:
        positive = np.maximum(h, 0)
        return on_top(positive, percentile, positive.sum() / kept(len(h), percentile))

    return shaped(rows, shape)


def ash_s(rows: Rows, percentile: float) -> Array:
    return shaped(rows, lambda h: on_top(h, percentile, h * np.exp(ratio(h, percentile))))


def scale(rows: Rows, percentile: float) -> Array:
    return shaped(rows, lambda h: h * np.exp(ratio(h, percentile)))


def lts(rows: Rows, percentile: float) -> Array:
    pairs = zip(rows.test_h, rows.test_z, strict=True)
    return np.array([energy(ratio(h, percentile) ** 2 * z) for h, z in pairs])


def vra(rows: Rows, low: float, high: float, per: str = "unit") -> Array:
    units = rows.h.T if per == "unit" else [rows.h.ravel()] * rows.h.shape[1]
    ends = [(np.quantile(unit, low / 100), np.quantile(unit, high / 100)) for unit in units]
    return shaped(
        rows, lambda h: np.array([0.0 if x < alpha else min(x, beta) for x, (alpha, beta) in zip(h, ends, strict=True)])
    )


def optfs_ends(rows: Rows) -> tuple[float, float]:
    return float(np.quantile(rows.h, 0.001)), float(np.quantile(rows.h, 0.999))


def optfs(rows: Rows, bins: int = 100) -> Array:
    low, high = optfs_ends(rows)

    def place(x: float) -> int | None:
        return int((x - low) / ((high - low) / bins)) if low <= x < high else None

    importance = np.zeros(bins)
    for h in rows.h:
        own = rows.weight[int(np.argmax(rows.weight @ h + rows.bias))]
        for w, x in zip(own, h, strict=True):
            if place(x) is not None:
                importance[place(x)] += w * x / len(rows.h)
    theta = 1000 * importance / np.linalg.norm(importance)
    return shaped(rows, lambda h: np.array([0.0 if place(x) is None else theta[place(x)] * x for x in h]))


def gen(rows: Rows, gamma: float = 0.1, top: int = 100) -> Array:
    scores = []
    for z in rows.test_z:
        p = np.sort(softmax(z))[::-1][:top]
        scores.append(-sum((x * (1 - x)) ** gamma for x in p))
    return np.array(scores)


def doctor(rows: Rows) -> Array:
    g = np.array([(softmax(z) ** 2).sum() for z in rows.test_z])
    return -(1 - g) / g


def kl_matching(rows: Rows) -> Array:
    predicted = rows.z.argmax(axis=1)
    templates = [softmax(rows.z[predicted == k], axis=1).mean(axis=0) for k in np.unique(predicted)]
    scores = []
    for z in rows.test_z:
        p = softmax(z)
        divergences = [
            sum(a * (np.log(a) - np.log(max(b, 1e-30))) for a, b in zip(p, d, strict=True) if a > 0) for d in templates
        ]
        scores.append(-min(divergences))
    return np.array(scores)


def temp_scale(rows: Rows) -> Array:
    def loss(inverse: float) -> float:
        return -float(np.mean([log_softmax(inverse * z)[y] for z, y in zip(rows.z, rows.y, strict=True)]))

    inverse = minimize_scalar(loss, bounds=(1e-6, 1e3), method="bounded", options={"xatol": 1e-12}).x
    return np.array([log_softmax(inverse * z).max() for z in rows.test_z])


def by_autograd(score, rows: Rows, **settings) -> Array:
    """One of ``reference.gradient``, which takes the weight, the bias and one embedding."""
    weight, bias, test = (torch.from_numpy(part) for part in (rows.weight, rows.bias, rows.test_h))
    return np.array([float(score(weight, bias, row, **settings)) for row in test])


def quadratic(x: Array, mean: Array, inverse: Array) -> float:
    return float((x - mean) @ inverse @ (x - mean))


def mahalanobis_pp(rows: Rows) -> Array:
    train, test = (np.array([unit_row(h) for h in part]) for part in (rows.h, rows.test_h))
    return -distance(train, rows.y)(test)


def rmds(rows: Rows) -> Array:
    """Only for covariances of full rank: otherwise the two pseudo-inverses leave out different directions."""
    overall = np.linalg.inv(np.cov(rows.h.T, bias=True))
    from_all = [quadratic(x, rows.h.mean(axis=0), overall) for x in rows.test_h]
    return from_all - distance(rows.h, rows.y)(rows.test_h)


def gaussian_mixture(rows: Rows) -> Array:
    means = class_means(rows.h, rows.y)
    inverse = np.linalg.pinv(within(rows.h, rows.y), rcond=1e-10, hermitian=True)
    shares = {c: np.log(np.mean(rows.y == c)) for c in means}
    return np.array([logsumexp([shares[c] - quadratic(x, means[c], inverse) / 2 for c in means]) for x in rows.test_h])


def ddu(rows: Rows, ridge: float = 1e-4) -> Array:
    """The density of every class at every row, with the determinant and the inverse of its own covariance.

    Up to the factor ``(2 pi)^(m / 2)``, which is the same for all rows.
    """
    train = np.array([unit_row(h) for h in rows.h])
    parts = []
    for c in np.unique(rows.y):
        mine = train[rows.y == c]
        covariance = (mine - mine.mean(axis=0)).T @ (mine - mine.mean(axis=0)) / len(mine)
        if np.trace(covariance) < 1e-12:
            continue  # rows that are all equal have no density
        covariance = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        constant = np.log(len(mine) / len(train)) - np.linalg.slogdet(covariance)[1] / 2
        parts.append((constant, mine.mean(axis=0), np.linalg.inv(covariance)))
    return np.array(
        [logsumexp([a - quadratic(unit_row(x), mean, inverse) / 2 for a, mean, inverse in parts]) for x in rows.test_h]
    )


def unit_row(h: Array) -> Array:
    return h / max(float(np.linalg.norm(h)), 1e-12)


def mme(rows: Rows) -> Array:
    """The sum of the five logarithms; class means are of predicted classes."""
    low, high = np.quantile(rows.h, [0.01, 0.99])
    u = -np.linalg.pinv(rows.weight) @ rows.bias
    width = rows.h.shape[1]
    second = sum(np.outer(h - u, h - u) for h in rows.h) / len(rows.h)
    residual = np.linalg.eigh(second)[1][:, : width - width // 2]
    norms = [np.linalg.norm(residual.T @ (h - u)) for h in rows.h]
    alpha = np.mean([z.max() for z in rows.z]) / np.mean(norms)
    mean = rows.h.mean(axis=0)
    units = np.array([unit_row(h) for h in rows.h])
    predicted = rows.z.argmax(axis=1)
    centres = {c: unit_row(units[predicted == c].mean(axis=0)) for c in set(predicted.tolist())}
    minor = np.linalg.eigh(np.cov(rows.h.T, bias=True))[1][:, : max(0, width - 256)]
    scores = []
    for h in rows.test_h:
        clipped = np.clip(h, low, high)
        top = np.sort(np.maximum(h, 0))[::-1][: max(1, width - round(width * 0.9))].sum()
        factor = np.exp(np.maximum(h, 0).sum() / top) if top > 0 else np.exp(1.0)
        scaled = rows.weight @ (h * factor) + rows.bias
        squared = np.full(len(rows.bias), 4.0)
        for c, centre in centres.items():
            squared[c] = np.square(unit_row(h) - centre).sum()
        own = rows.weight @ clipped + rows.bias
        winner = int(own.argmax())
        gaps = [
            (own[winner] - own[c]) / np.linalg.norm(rows.weight[winner] - rows.weight[c])
            for c in range(len(own))
            if c != winner
        ]
        fdbd = sum(gaps) / len(gaps) / np.linalg.norm(clipped - mean)
        r = np.linalg.norm(minor.T @ (clipped - mean)) / np.linalg.norm(clipped)
        scores.append(
            logsumexp(scaled)
            - alpha * np.linalg.norm(residual.T @ (clipped - u))
            + max(-log_softmax(squared / 0.1))
            + (np.log(2) if squared.argmin() == scaled.argmax() else 0.0)
            + np.log(max(1 - r, 1e-12))
            + np.log(max(fdbd, 1e-12))
        )
    return np.array(scores)


def support(rows: Rows, of: str, column: str) -> Array:
    train, test = (rows.h, rows.test_h) if column == "embedding" else (rows.z, rows.test_z)
    means, variances = train.mean(axis=0), train.var(axis=0)
    scale = np.sqrt(variances + 1e-4 * variances.mean())
    deviations = [[abs(value - mean) / width for value, mean, width in zip(x, means, scale, strict=True)] for x in test]
    return np.array([-max(row) if of == "max" else -math.fsum(z * z for z in row) / len(row) for row in deviations])


def knn(rows: Rows, k: int) -> Array:
    distances = [sorted(float(np.square(unit_row(x) - unit_row(h)).sum()) for h in rows.h) for x in rows.test_h]
    return np.array([-each[k - 1] / 2 for each in distances])


def nnguide(rows: Rows, k: int) -> Array:
    energies = np.array([energy(z) for z in rows.z])
    shift = max(0.0, -energies.min())
    scores = []
    for x, z in zip(rows.test_h, rows.test_z, strict=True):
        guided = sorted(
            (float(unit_row(x) @ unit_row(h)) * (e + shift) for h, e in zip(rows.h, energies, strict=True)),
            reverse=True,
        )
        scores.append((energy(z) + shift) * np.mean(guided[:k]))
    return np.array(scores)


def she(rows: Rows) -> Array:
    predicted = rows.z.argmax(axis=1)
    scores = []
    for x, z in zip(rows.test_h, rows.test_z, strict=True):
        c = z.argmax()
        correct, mine = (rows.y == c) & (predicted == c), rows.y == c
        chosen = rows.h[correct] if correct.any() else rows.h[mine] if mine.any() else rows.h
        scores.append(float(x @ chosen.mean(axis=0)))
    return np.array(scores)


def outside(rows: Rows, dimension: int) -> tuple[Array, Array]:
    origin = -np.linalg.pinv(rows.weight) @ rows.bias
    centred = rows.h - origin
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    return origin, vectors[:, np.argsort(values)[: rows.h.shape[1] - dimension]]


def residual(rows: Rows, dimension: int) -> Array:
    origin, directions = outside(rows, dimension)
    return np.array([-np.linalg.norm(directions.T @ (x - origin)) for x in rows.test_h])


def vim(rows: Rows, dimension: int) -> Array:
    origin, directions = outside(rows, dimension)
    norms = [np.linalg.norm(directions.T @ (x - origin)) for x in rows.h]
    alpha = rows.z.max(axis=1).mean() / np.mean(norms)
    return np.array([energy(z) for z in rows.test_z]) + alpha * residual(rows, dimension)


def neco(rows: Rows, dimension: int) -> Array:
    spread = rows.h.std(axis=0)
    spread = np.where(spread > 0, spread, 1)
    standard = (rows.h - rows.h.mean(axis=0)) / spread
    values, vectors = np.linalg.eigh(standard.T @ standard / len(standard))
    principal = vectors[:, np.argsort(values)[::-1][:dimension]]
    shift = max(0.0, -rows.z.max(axis=1).min())
    scores = []
    for x, z in zip(rows.test_h, rows.test_z, strict=True):
        row = (x - rows.h.mean(axis=0)) / spread
        scores.append(np.linalg.norm(principal.T @ row) / np.linalg.norm(row) * (z.max() + shift))
    return np.array(scores)


def pnml(rows: Rows) -> Array:
    train = np.array([unit_row(h) for h in rows.h])
    gram = train.T @ train
    inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    scores = []
    for h in rows.test_h:
        x = unit_row(h)
        inside, outside = x @ inverse @ x, x @ (x - gram @ inverse @ x)
        power = max(outside, inside / (1 + inside)) if x.any() else 1.0
        p = softmax(rows.weight @ x + rows.bias)
        regret = np.log(sum(a / (a + (1 - a) * a**power) for a in p))
        scores.append(-regret / np.log(len(p)))
    return np.array(scores)


def cadref(rows: Rows) -> Array:
    predicted = rows.z.argmax(axis=1)
    mean_energy = np.mean([energy(z) for z in rows.z])
    scores = []
    for x, z in zip(rows.test_h, rows.test_z, strict=True):
        y = z.argmax()
        mine = rows.h[predicted == y] if (predicted == y).any() else rows.h
        d, sign = x - mine.mean(axis=0), np.sign(rows.weight[y])
        along = sum(max(a * s, 0) for a, s in zip(d, sign, strict=True)) / np.abs(x).sum()
        against = sum(max(-a * s, 0) for a, s in zip(d, sign, strict=True)) / np.abs(x).sum()
        scores.append(-(along / max(energy(z), mean_energy / 1000) + against / mean_energy))
    return np.array(scores)


def fdbd(rows: Rows) -> Array:
    scores = []
    for x, z in zip(rows.test_h, rows.test_z, strict=True):
        y = z.argmax()
        away = [(z[y] - z[k]) / np.linalg.norm(rows.weight[y] - rows.weight[k]) for k in range(len(z)) if k != y]
        scores.append(np.mean(away) / np.linalg.norm(x - rows.h.mean(axis=0)))
    return np.array(scores)


def nci(rows: Rows, alpha: float = 1e-4) -> Array:
    scores = []
    for x, z in zip(rows.test_h, rows.test_z, strict=True):
        centred = x - rows.h.mean(axis=0)
        scores.append(rows.weight[z.argmax()] @ centred / np.linalg.norm(centred) + alpha * np.abs(x).sum())
    return np.array(scores)


def openmax(rows: Rows, tail: int, top: int) -> Array:
    classes = rows.z.shape[1]
    tails = {}
    for c in range(classes):
        mine = rows.z[(rows.y == c) & (rows.z.argmax(axis=1) == c)]
        if len(mine) < 3:
            continue
        centre = mine.mean(axis=0)
        distances = np.sort([np.linalg.norm(z - centre) for z in mine])[::-1][:tail]

        def negative_log_likelihood(log_width: float, distances: Array = distances) -> float:
            """At a given width, with the place that is best for it."""
            width = np.exp(log_width)
            place = width * (logsumexp(distances / width) - np.log(len(distances)))
            u = (distances - place) / width
            return float(-(u - np.exp(u) - log_width).sum())

        found = minimize_scalar(negative_log_likelihood, bounds=(-8, 5), method="bounded", options={"xatol": 1e-10})
        width = np.exp(found.x)
        tails[c] = centre, width * (logsumexp(distances / width) - np.log(len(distances))), width
    scores = []
    for z in rows.test_z:
        share = np.zeros(classes)
        for place, c in enumerate(np.argsort(-z, kind="stable")[:top]):
            if c in tails:
                centre, start, width = tails[c]
                improbable = 1 - np.exp(-np.exp(min((np.linalg.norm(z - centre) - start) / width, 30)))
                share[c] = improbable * (min(top, classes) - place) / min(top, classes)
        scores.append(logsumexp(z * (1 - share)) - (z * share).sum())
    return np.array(scores)
