"""Gram: how far the Gram matrices of inner layers are outside the range they have on ID data."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from oodles.columns import LAYER
from oodles.detectors.arguments import check_whole
from oodles.detectors.base import Statistics
from oodles.detectors.network_detector import NetworkDetector
from oodles.detectors.rankfeat import reduced
from oodles.detectors.statistics import RowSample, Statistic, row_keys
from oodles.errors import ArgumentError, DataError, FitWarning, ShapeError
from oodles.features import Features, Head
from oodles.functional import msp

HELD_OUT = "held_out"
HELD_OUT_PERCENT = 10
MAX_ROWS, MIN_ROWS = 400, 20
MAX_NUMBERS = 50_000_000  # classes times values per row; two of each are kept, 400 MB in float32
SMALL = 1e-6


class Gram(NetworkDetector):
    """Deviation of inner layers' Gram matrices from their range on ID data (Sastry & Oore, ICML 2020).

    ``G`` are the row sums of a layer's Gram matrices of orders 1 to ``orders``, as computed by
    :func:`oodles.functional.gram_row_sums`, and ``low`` and ``high`` their smallest and largest values among training
    rows of the predicted class. A layer deviates by
    ``d = sum of relu(low - G) / (|low| + 1e-6) + relu(G - high) / (|high| + 1e-6)`` and ``E`` is its mean ``d`` on
    held-out rows: ``-(sum over layers of d / E) / p`` with ``p`` the largest softmax probability.

    A tenth of the training rows is held out, chosen by content and so the same in any order; ``E`` is computed on at
    most 400 of them. Rows predicted as a class without training rows are compared with the range of all classes. The
    paper uses every convolution and ReLU and 10 orders; the default layers are those of torchvision's ResNets. It
    keeps two numbers per class, layer, order and channel, and refuses more than 50 million of each.

    >>> Gram(layers=("layer3", "layer4")).layers  # reduced while the network runs, since maps are large
    ('layer3:gram(5)', 'layer4:gram(5)')
    """

    rows_at_once = 128  # a row of all layers and orders has thousands of values
    low_: Tensor
    high_: Tensor
    scale_: Tensor

    def __init__(self, *, layers: Sequence[str] = ("layer1", "layer2", "layer3", "layer4"), orders: int = 5) -> None:
        super().__init__()
        if isinstance(layers, str) or not layers or not all(isinstance(layer, str) and layer for layer in layers):
            raise ArgumentError(f"layers={layers!r} must be a list of names")
        if len(set(layers)) < len(layers):
            raise ArgumentError(f"layers={layers!r} has a name twice")
        self.given_layers = tuple(layers)
        self.orders = check_whole("orders", orders, 1, 10)
        self.layers = tuple(reduced(layer, f"gram({self.orders})") for layer in layers)
        self.columns = tuple(LAYER + name for name in self.layers)
        self.learns_from = (*self.columns, "logits")
        self.scores_from = ("logits", *self.columns)

    @override
    def arguments(self) -> dict[str, object]:
        return {"layers": self.given_layers, "orders": self.orders}

    @override
    def layer_widths(self) -> dict[str, int]:
        # only their sum is known, and only their sum matters
        return {**dict.fromkeys(self.columns, 0), self.columns[0]: self.low_.shape[1]}

    @override
    def begin(self) -> dict[str, Statistic]:
        return {**{column: ClassRange() for column in self.columns}, HELD_OUT: RowSample(MAX_ROWS)}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        parts = [batch.column(column).detach().to("cpu", torch.float32) for column in self.columns]
        width = sum(part.shape[1] for part in parts)
        if batch.classes * width > MAX_NUMBERS:
            raise DataError(
                f"{self} would keep twice {batch.classes} classes x {width} values, more than {MAX_NUMBERS:,}; give "
                "fewer layers or orders"
            )
        predicted = batch.logits.argmax(dim=1).cpu()
        rows = torch.cat(parts, dim=1)
        keys = row_keys(rows)
        # the low digits, because the sample is of the rows with the smallest keys
        held_out = keys % 100 < HELD_OUT_PERCENT
        for column, part in zip(self.columns, parts, strict=True):
            statistics[column].add(part[~held_out], predicted[~held_out], batch.classes)
        statistics[HELD_OUT].add(torch.cat([predicted[:, None].float(), rows], dim=1)[held_out], keys=keys[held_out])

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        ranges = [statistics[column] for column in self.columns]
        held_out = statistics[HELD_OUT].rows()
        predicted, rows = held_out[:, 0].long(), torch.split(held_out[:, 1:], [each.width for each in ranges], dim=1)
        empty = int((~ranges[0].seen()).sum())
        for each, part in zip(ranges, rows, strict=True):
            if not each.seen().any():  # equal rows are all held out or none of them is
                each.add(part, predicted, self._seen[1])
        self.low_ = torch.cat([each.low() for each in ranges], dim=1)
        self.high_ = torch.cat([each.high() for each in ranges], dim=1)
        usual = (
            self._deviations(predicted, rows, torch.float64).mean(dim=0) if len(held_out) else torch.zeros(len(ranges))
        )
        self.scale_ = torch.where(usual > 0, usual, 1.0).float()
        self._report(empty, len(held_out), usual)

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        width = sum(part.shape[1] for part in others)
        if width != self.low_.shape[1]:
            raise ShapeError(f"{self} was fitted on layers of width {self.low_.shape[1]}, got {width}; another model?")
        deviations = self._deviations(logits.argmax(dim=1), others, self.low_.dtype)
        return -(deviations / self.scale_).sum(dim=1) * torch.exp(-msp(logits))

    def _deviations(self, predicted: Tensor, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """How far each layer of each row is outside the range of its class, ``(n, layers)``."""
        widths = [part.shape[1] for part in parts]
        lows, highs = (torch.split(bound[predicted].to(dtype), widths, dim=1) for bound in (self.low_, self.high_))
        each = [
            ((low - part).relu() / (low.abs() + SMALL) + (part - high).relu() / (high.abs() + SMALL)).sum(dim=1)
            for part, low, high in zip(parts, lows, highs, strict=True)
        ]
        return torch.stack(each, dim=1)

    def _report(self, empty: int, held_out: int, usual: Tensor) -> None:
        facts = []
        if empty:
            facts.append(f"{empty} of {self._seen[1]} classes are never predicted and get the range of all classes")
        if held_out < MIN_ROWS:
            facts.append(f"only {held_out} rows are held out for the mean deviation")
        constant = [name for name, value in zip(self.given_layers, usual.tolist(), strict=True) if value == 0]
        if constant:
            facts.append(
                f"layer {constant[0]} never deviates on held-out rows, so it is not divided by its mean deviation"
            )
        if facts:
            warnings.warn(f"{self}: {'; '.join(facts)}; give more training rows", FitWarning, stacklevel=3)


class ClassRange:
    """The smallest and the largest value of each column, per class.

    >>> part = ClassRange()
    >>> part.add(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 0, 2]), 3)
    >>> part.low().T, part.high().T
    (tensor([[1., 1., 9.]]), tensor([[3., 9., 9.]]))
    """

    def __init__(self) -> None:
        self.width = 0
        self._low = torch.zeros(0, 0)
        self._high = torch.zeros(0, 0)

    def add(self, values: Tensor, labels: Tensor, classes: int) -> None:
        """Add the rows of one batch."""
        if not len(self._low):
            self.width = values.shape[1]
            self._low = torch.full((classes, self.width), torch.inf)
            self._high = -self._low
        for label in torch.unique(labels).tolist():
            low, high = torch.aminmax(values[labels == label], dim=0)
            self._low[label] = torch.minimum(self._low[label], low)
            self._high[label] = torch.maximum(self._high[label], high)

    def merge(self, other: "ClassRange") -> None:
        """Add another's rows."""
        if not len(self._low):
            self.width, self._low, self._high = other.width, other._low.clone(), other._high.clone()
        elif len(other._low):
            self._low, self._high = torch.minimum(self._low, other._low), torch.maximum(self._high, other._high)

    def seen(self) -> Tensor:
        """Whether each class has rows."""
        return (self._low <= self._high).any(dim=1)

    def low(self) -> Tensor:
        """The smallest values ``(C, m)``; a class without rows has those of all classes."""
        return torch.where(self.seen()[:, None], self._low, self._low.amin(dim=0))

    def high(self) -> Tensor:
        """The largest values, likewise."""
        return torch.where(self.seen()[:, None], self._high, self._high.amax(dim=0))
