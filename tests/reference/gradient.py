"""Input steps by finite differences, pixel by pixel, and distances to classes one by one; all in float64.

A network is a function of images ``(n, ...)`` that gives an array with one row per image, an objective one that gives
one number per image.
"""

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from reference.metrics import fpr_at_tpr
from reference.scores import msp
from torch import Tensor

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Network = Callable[[Array], Array]

# Steps --------------------------------------------------------------------------------------------


def slopes(objective: Network, image: Array, width: float = 1e-4) -> Array:
    """Central differences, one pixel at a time."""
    places = list(np.ndindex(*image.shape))
    up, down = (np.repeat(image[None], len(places), axis=0) for _ in range(2))
    for row, place in enumerate(places):
        up[(row, *place)] += width
        down[(row, *place)] -= width
    rises = (objective(up) - objective(down)) / (2 * width)
    return np.array([rises[row] for row in range(len(places))]).reshape(image.shape)


def moved(image: Array, gradient: Array, epsilon: float, std: Sequence[float] = ()) -> Array:
    """Every pixel moved against the sign of its gradient; a pixel whose gradient is zero does not move."""
    after = image.copy()
    for place in np.ndindex(*image.shape):
        size = epsilon / std[place[0]] if std else epsilon
        if gradient[place] > 0:
            after[place] -= size
        if gradient[place] < 0:
            after[place] += size
    return after


def stepped(objective: Network, image: Array, epsilon: float, std: Sequence[float] = ()) -> Array:
    """The image after a step that lowers the objective."""
    return moved(image, slopes(objective, image), epsilon, std)


# ODIN and Generalized ODIN --------------------------------------------------------------------------


def doubt(network: Network, temperature: float) -> Network:
    """Cross-entropy of the tempered softmax with the predicted class."""

    def values(images: Array) -> Array:
        return np.array([-msp(row, temperature) for row in network(images).tolist()])

    return values


def odin(network: Network, image: Array, temperature: float, epsilon: float, std: Sequence[float] = ()) -> float:
    after = stepped(doubt(network, temperature), image, epsilon, std)
    return msp(network(after[None])[0].tolist(), temperature)


def iodin(network: Network, image: Array, temperature: float, epsilon: float, std: Sequence[float] = ()) -> float:
    """ODIN, but only the pixel with the largest gradient moves."""
    gradient = slopes(doubt(network, temperature), image)
    only = np.zeros_like(gradient)
    largest = max(np.ndindex(*image.shape), key=lambda place: abs(gradient[place]))
    only[largest] = gradient[largest]
    return msp(network(moved(image, only, epsilon, std)[None])[0].tolist(), temperature)


def remoteness(cosines: Network) -> Network:
    def values(images: Array) -> Array:
        return np.array([-max(row) for row in cosines(images).tolist()])

    return values


def godin(cosines: Network, image: Array, epsilon: float, std: Sequence[float] = ()) -> float:
    after = stepped(remoteness(cosines), image, epsilon, std)
    return max(cosines(after[None])[0].tolist())


def best_step(score: Callable[[Array, float], float], images: Array, grid: Sequence[float]) -> float:
    """The step with the largest sum of scores, the smallest of equal ones."""
    best, most = grid[0], -math.inf
    for epsilon in grid:
        total = math.fsum(score(image, epsilon) for image in images)
        if total > most:
            best, most = epsilon, total
    return best


def cosine(row: Array, direction: Array, floor: float = 1e-4) -> float:
    product = math.fsum(a * b for a, b in zip(row.tolist(), direction.tolist(), strict=True))
    return product / ((math.hypot(*row) + floor) * (math.hypot(*direction) + floor))


# Class moments and distances --------------------------------------------------------------------------


def class_means(rows: Array, labels: Labels) -> dict[int, Array]:
    """The mean of each class that has a row."""
    return {int(label): rows[labels == label].mean(axis=0) for label in np.unique(labels)}


def within(rows: Array, labels: Labels) -> Array:
    """The covariance about the class means, row by row; divided by the number of rows."""
    means = class_means(rows, labels)
    matrix = np.zeros((rows.shape[1], rows.shape[1]))
    for row, label in zip(rows, labels.tolist(), strict=True):
        matrix += np.outer(row - means[label], row - means[label])
    return matrix / len(rows)


def distance(rows: Array, labels: Labels) -> Callable[[Array], Array]:
    """The squared distance of further rows to the nearest class of these."""
    means = class_means(rows, labels)
    precision = np.linalg.pinv(within(rows, labels), rcond=1e-10, hermitian=True)

    def nearest(others: Array) -> Array:
        to_classes = []
        for mean in means.values():
            apart = others - mean
            to_classes.append(((apart @ precision) * apart).sum(axis=1))
        return np.min(to_classes, axis=0)

    return nearest


# Several layers -----------------------------------------------------------------------------------


def fgsm(losses: Network, image: Array, size: float, low: Array, high: Array) -> Array:
    """A step up the loss, clipped to the bounds of each channel."""
    after = moved(image, slopes(losses, image), -size)
    for place in np.ndindex(*image.shape):
        after[place] = min(max(after[place], low[place[0]]), high[place[0]])
    return after


def closeness(distances: Sequence[Network], images: Array, sizes: Sequence[float]) -> dict[float, Array]:
    """Minus the distance in each layer, each after its own step, for each step size; ``(n, layers)``."""
    rows: dict[float, list[list[float]]] = {size: [] for size in sizes}
    for image in images:
        gradients = [slopes(one, image) for one in distances]
        for size in sizes:
            after = [moved(image, gradient, size) for gradient in gradients]
            rows[size].append([-float(one(x[None])[0]) for one, x in zip(distances, after, strict=True)])
    return {size: np.array(values) for size, values in rows.items()}


def combined(inside: Array, outside: Array) -> Callable[[Array], Array]:
    """The decision function of scikit-learn's cross-validated regression on standardised columns."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegressionCV())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.fit(np.concatenate([inside, outside]), [1] * len(inside) + [0] * len(outside))
    return lambda rows: np.asarray(model.decision_function(rows))


def best_combination(
    inside: dict[float, Array], outside: dict[float, Array], grid: Sequence[float]
) -> tuple[float, Callable[[Array], Array]]:
    """Half the rows train a regression at each step size, the other half choose the size by FPR95."""
    half = len(inside[grid[0]]) // 2
    trials = []
    for epsilon in grid:
        decide = combined(inside[epsilon][:half], outside[epsilon][:half])
        ids, oods = (decide(rows[epsilon][half : 2 * half]).tolist() for rows in (inside, outside))
        trials.append((fpr_at_tpr(ids, oods), epsilon, decide))
    lowest = min(rate for rate, _, _ in trials)
    return next((epsilon, decide) for rate, epsilon, decide in trials if rate == lowest)


# Gradients of the last layer ------------------------------------------------------------------------


def _log_softmax(weight: Tensor, bias: Tensor, embedding: Tensor, temperature: float = 1) -> Tensor:
    return torch.log_softmax((weight @ embedding + bias) / temperature, dim=0)


def gradnorm(weight: Tensor, bias: Tensor, embedding: Tensor, temperature: float = 1) -> Tensor:
    """L1 norm of the gradient of the cross-entropy with a uniform target, by autograd."""
    weight = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-_log_softmax(weight, bias, embedding, temperature).mean(), weight)
    return gradient.abs().sum()


def grad_uncertainty(weight: Tensor, bias: Tensor, embedding: Tensor) -> Tensor:
    """Squared L2 norm of the gradient of the cross-entropy with a target of all ones."""
    weight = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-_log_softmax(weight, bias, embedding).sum(), weight)
    return gradient.square().sum()


def exgrad(weight: Tensor, bias: Tensor, embedding: Tensor) -> Tensor:
    """Minus the L1 norm of the gradient for each class as the target, weighted by the class's probability."""
    weight = weight.clone().requires_grad_()
    log_probability = _log_softmax(weight, bias, embedding)
    expected = torch.zeros((), dtype=weight.dtype)
    for label in range(len(log_probability)):
        (gradient,) = torch.autograd.grad(-log_probability[label], weight, retain_graph=True)
        expected = expected + log_probability[label].exp().detach() * gradient.abs().sum()
    return -expected
