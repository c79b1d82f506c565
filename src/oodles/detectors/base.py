"""``Detector``: what every method shares, so that a method writes only its mathematics."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from oodles.columns import LAYER, Columns, is_finite, rows_not_finite
from oodles.detectors.arguments import Described, as_html, describe
from oodles.detectors.outliers import RowNorms
from oodles.detectors.statistics import Statistic
from oodles.errors import ArgumentError, DataError, NotFittedError, ShapeError
from oodles.features import REMEDIES, Features, Head

INPUTS = ("embedding", "logits")  # the columns that every detector's ``forward`` takes first

EXAMPLES = 16  # training rows that a detector keeps, for the self-test of its file
HEAD_TOLERANCE = 5e-3  # what half precision does to a head, and far less than what training does

Statistics = dict[str, Any]


class Detector(Described):
    """Ranks inputs by how in-distribution they look: ``fit`` on ID features, then ``score``.

    What a detector learns are buffers, declared as annotations whose names end in ``_`` (``mean_: Tensor``), so
    ``.to()`` and ``state_dict`` work as on any module. ``fit`` is a fold over batches; ``partial_fit``, ``merge`` and
    ``finish`` run the same fold in pieces, for data that arrives in parts or is spread over processes.

    A method declares what it ``learns_from`` and ``scores_from`` (``embedding``, ``logits``, ``labels``, ``head``,
    ``layer.<name>``) and implements :meth:`begin`, :meth:`observe`, :meth:`learn` and :meth:`forward`. One that needs
    inner layers or input gradients is a :class:`~oodles.detectors.NetworkDetector`.

    >>> class FirstUnit(Detector):
    ...     def forward(self, embedding, logits, *others):
    ...         return embedding[:, 0]
    >>> FirstUnit().score(Features(torch.tensor([[3.0, 1.0], [0.0, 2.0]]), head=Head(torch.eye(2))))
    tensor([3., 0.])
    """

    learns_from: tuple[str, ...] = ()
    scores_from: tuple[str, ...] = INPUTS
    rows_at_once = 1 << 16  # that ``forward`` is given; fewer if it needs much memory for a row
    shape_: Tensor | None
    probe_: Tensor | None
    # True if all statistics are of the embedding alone and may be shared with other detectors under their names
    _shares_statistics = False

    def __init__(self) -> None:
        super().__init__()
        self._statistics: Statistics | None = None
        self._norms = RowNorms()
        self._examples: Columns = {}
        self._head: Head | None = None
        self._seen = (0, 0)
        self._device = torch.device("cpu")

    # The four hooks that a method implements ----------------------------------------------------

    def begin(self) -> dict[str, Statistic]:
        """Return empty statistics."""
        return {}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch to the statistics; by default its embeddings to each of them."""
        for statistic in statistics.values():
            statistic.add(batch.embedding)

    def learn(self, statistics: Statistics, head: Head) -> None:
        """Compute the buffers from the statistics; ``head`` is only there if ``learns_from`` contains it.

        Everything is on the CPU here, the head in float32; the buffers are moved to the features' device afterwards.
        """

    @abstractmethod
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Scores ``(n,)`` from ``(n, m)`` and ``(n, C)``; an input that is not in ``scores_from`` may be ``(n, 0)``.

        ``others`` are the further columns of ``scores_from``, in its order.
        """

    # Fitting ----------------------------------------------------------------------------------

    def fit(self, features: Features) -> Self:
        """Learn from ID training features; anything learned before is discarded."""
        fit_together([self], features)
        return self

    def partial_fit(self, batch: Features) -> Self:
        """Add one batch; :meth:`finish` completes the fit."""
        self._require_open()
        self.observe(batch, self._receive(batch))
        self._norms.add(batch, learned_columns([self] if self._statistics else []))
        return self

    def merge(self, other: "Detector") -> Self:
        """Add everything that another detector of the same kind has observed; :meth:`finish` completes the fit."""
        if describe(other) != describe(self):
            raise ArgumentError(f"{self} cannot merge {other}: type and arguments must be the same")
        self._require_open()
        if other._statistics is None:
            raise NotFittedError(f"{other} has no statistics to merge; call .partial_fit(batch) on it, not .fit")
        if self._statistics is None:
            self._examples = other._examples
        statistics = self._continue(other._head, other._seen, other._device, other)
        for name, statistic in statistics.items():
            statistic.merge(other._statistics[name])
        self._norms.merge(other._norms)
        return self

    def finish(self) -> Self:
        """Compute what scoring needs from everything observed so far."""
        if self._statistics is None:
            raise NotFittedError(f"{self} has observed nothing; call .fit(features) or .partial_fit(batch) first")
        self.shape_ = self.probe_ = None
        self._norms.warn()
        head = None if self._head is None else self._head.to("cpu", torch.float32)
        _learn_finite(self, self._statistics, cast(Head, head))
        remember_model(self, self._seen, self._head)
        return self.to(self._device)

    @property
    def fitted(self) -> bool:
        """Whether the detector can score."""
        return not self.learns_from or self.shape_ is not None

    @property
    def needs_softmax(self) -> bool:
        """Whether classes are taken as exclusive, as under a softmax: by default if logits or the head are used."""
        return bool({"logits", "head"} & {*self.learns_from, *self.scores_from})

    def _require_open(self) -> None:
        """One that was fitted in one go, or loaded, kept no statistics: adding to it would start from nothing."""
        if self._statistics is None and self.shape_ is not None:
            raise ArgumentError(f"{self} is fitted and kept no statistics to add to; use a new one with partial_fit")

    def _receive(self, batch: Features) -> Statistics:
        """Return the statistics that a batch is to be added to."""
        _require_columns(self, batch, self.learns_from, "learns from")
        if self._statistics is None:
            few = batch[:EXAMPLES]
            names = (*INPUTS, *(LAYER + name for name in few.layers))
            self._examples = {name: few.column(name).detach().cpu().clone() for name in names if few.holds(name)}
        return self._continue(batch.head, (batch.width, batch.classes), batch.device, batch)

    def _continue(self, head: Head | None, seen: tuple[int, int], device: torch.device, what: object) -> Statistics:
        """Return the statistics so far, if what is to be added to them comes from the same model."""
        if self._statistics is None:
            self._statistics, self._norms = self.begin(), RowNorms()
            self._head, self._seen, self._device = head, seen, device
        _check_same_model(self, head, seen, what)
        return self._statistics

    # Scoring ----------------------------------------------------------------------------------

    def score(self, features: Features) -> Tensor:
        """Scores ``(n,)`` on the CPU, larger = more in-distribution; float64 if the detector is.

        A row that is not finite in the detector's precision, or whose score is not, gets NaN.
        """
        check_fitted(self)
        _require_columns(self, features, self.scores_from, "scores from")
        _check_widths(self, features)
        if features.head is not None:
            check_head(self, features.head)
        scores = _joined(_score_batches(self, features), len(features))
        # the sum is finite unless a score is not, or all are huge
        return scores if bool(scores.sum().isfinite()) else scores.masked_fill(scores.isinf(), torch.nan)

    def _remedy(self) -> str:
        return "call .fit(features) first"

    def _repr_html_(self) -> str:
        return as_html(self)


def fit_together(detectors: Sequence[Detector], features: Features) -> None:
    """Fit several detectors in one pass over the features, which may be larger than memory.

    Detectors that learn from the same statistics of embeddings share them, so a hundred cost little more than one.
    Rows that are far longer than the others are reported; :func:`~oodles.detectors.drop_outliers` leaves them out.

    >>> from oodles.detectors import DICE, KNN
    >>> from oodles.testing import example_features
    >>> several = [DICE(p=0.9), DICE(p=0.5), KNN()]
    >>> fit_together(several, example_features())
    >>> [detector.fitted for detector in several]
    [True, True, True]
    """
    for detector in detectors:
        check_features(detector, features)
        detector._statistics = None
    learners = [detector for detector in detectors if detector.learns_from]
    # what learns from the head alone needs one batch, and no row can spoil it
    columns, norms = learned_columns([detector for detector in learners if detector.begin()]), RowNorms()
    shared: Statistics = {}
    try:
        for batch in features.batches() if learners else ():
            for detector in learners:
                first = detector._statistics is None
                statistics = detector._receive(batch)
                if not detector._shares_statistics:
                    detector.observe(batch, statistics)
                elif first:
                    statistics.update({name: shared.setdefault(name, own) for name, own in statistics.items()})
            for statistic in shared.values():
                statistic.add(batch.embedding)
            if not columns:
                break
            norms.add(batch, columns)
        norms.warn()
        for detector in learners:
            detector.finish()
    finally:  # the activations behind a percentile are large, and those of a failed fit must not count later
        for detector in learners:
            detector._statistics = None


def learned_columns(detectors: Sequence[Detector]) -> tuple[str, ...]:
    """The columns of numbers that any of the detectors learns from, each once."""
    names = (name for detector in detectors for name in detector.learns_from if name not in ("labels", "head"))
    return tuple(dict.fromkeys(names))


def _check_same_model(detector: Detector, head: Head | None, seen: tuple[int, int], what: object) -> None:
    if not detector.learns_from:
        return
    known = detector._head
    if seen != detector._seen:
        raise ShapeError(
            f"{detector} has observed (width, classes) {detector._seen}, {what} has {seen}; are both from one model?"
        )
    if "head" not in detector.learns_from or head is known or head is None or known is None:
        return
    if not head.same_as(known):
        raise ShapeError(f"{detector} has observed features of another head; are all of them from the same model?")


def _learn_finite(detector: Detector, statistics: Statistics, head: Head) -> None:
    """Let the detector learn; buffers that are not finite are an error."""
    try:
        detector.learn(statistics, head)
        bad = [name for name, buffer in detector.named_buffers() if not is_finite(buffer)]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # what a decomposition makes of NaN
        bad = ["a decomposition failed"]
    if bad:
        raise DataError(
            f"{detector} learned values that are not finite ({bad[0]}); are all training rows like the others? Leave "
            "out those that are not: fit on oodles.detectors.drop_outliers(features)"
        )


def remember_model(detector: Detector, seen: tuple[int, int], head: Head | None) -> None:
    """Keep the shape and the head of the training features, which features to score must match."""
    if detector.learns_from:
        detector.shape_ = torch.tensor(seen)
        detector.probe_ = None if head is None else head.probe.clone()


@torch.no_grad()
def _score_batches(detector: Detector, features: Features) -> Iterator[Tensor]:
    """The scores of each batch; a row that is not finite in the detector's precision has NaN."""
    buffer = float_buffer(detector)
    wanted, names = detector.scores_from, (*INPUTS, *extra_columns(detector))
    for batch in (part for piece in features.batches() for part in piece.batches(detector.rows_at_once)):
        columns = [batch.column(name) if name in wanted else None for name in names]
        first = next(column for column in columns if column is not None)
        wide = torch.float64 if first.dtype == torch.float64 else torch.float32
        like = first.new_empty(0, dtype=wide) if buffer is None else buffer
        used = [like.new_empty(len(batch), 0) if column is None else column.to(like) for column in columns]
        part = detector(*used).cpu()
        # a large number may become infinite in a narrower type, and clipping would hide it
        narrower = any(old is not None and torch.promote_types(old.dtype, like.dtype) != like.dtype for old in columns)
        bad = rows_not_finite(dict(zip(names, used, strict=True))) if narrower or not features.validated else []
        yield part.index_fill(0, torch.tensor(bad), torch.nan) if bad else part


def float_buffer(detector: Detector) -> Tensor | None:
    """A tensor of the type and on the device that the detector computes in; None if it has learned no numbers."""
    return next((buffer for buffer in detector.buffers() if buffer.is_floating_point()), None)


def _joined(parts: Iterator[Tensor], rows: int) -> Tensor:
    """All scores; a list of the parts would keep the memory of the batches between them in use."""
    scores, start = torch.empty(0), 0
    for part in parts:
        scores = scores if start else part.new_empty(rows, *part.shape[1:])
        scores[start : start + len(part)] = part
        start += len(part)
    return scores


def extra_columns(detector: Detector) -> tuple[str, ...]:
    """The columns a detector scores from besides embedding and logits."""
    return tuple(column for column in detector.scores_from if column not in INPUTS)


def check_fitted(detector: Detector) -> None:
    """Raise unless the detector can score."""
    if not detector.fitted:
        raise NotFittedError(f"{detector} has not been fitted; {detector._remedy()}")


def check_head(detector: Detector, head: Head) -> None:
    """Raise if the detector was fitted on features of another head of the same shape."""
    if detector.probe_ is None or len(detector.probe_) != head.classes:
        return
    known = detector.probe_.cpu().float()
    if (head.probe - known).abs().max() > HEAD_TOLERANCE * known.abs().max().clamp(min=1e-3):
        raise ShapeError(f"{detector} was fitted on features of another head; fit it on features of this model")


def _check_widths(detector: Detector, features: Features) -> None:
    if detector.shape_ is None:
        return
    width, classes = detector.shape_.tolist()
    for name, want, got in (("embedding", width, features.width), ("logits", classes, features.classes)):
        if name in detector.scores_from and want != got:
            noun = "embeddings" if name == "embedding" else "logits"
            raise ShapeError(
                f"{detector} was fitted on {noun} of width {want}, got {got}; are both from the same model?"
            )


def check_multilabel(detector: Detector) -> None:
    """Raise unless the detector makes sense for models with one sigmoid per class."""
    if detector.needs_softmax:
        raise ArgumentError(
            f"{detector.spec} takes classes as exclusive, but the model is multi-label (one sigmoid per class); use "
            "joint_energy, max_logit or a distance between embeddings such as knn"
        )


def check_features(detector: object, features: object) -> None:
    """Raise unless ``features`` are Features."""
    if not isinstance(features, Features):
        kind = type(features).__name__
        raise ArgumentError(f"{detector} takes Features, not {kind}; wrap it: oodles.Features(embedding, logits=...)")


def _require_columns(detector: Detector, features: Features, columns: tuple[str, ...], verb: str) -> None:
    check_features(detector, features)
    if features.multilabel:
        check_multilabel(detector)
    missing = [column for column in columns if not features.holds(column)]
    if missing:
        remedy = REMEDIES.get(missing[0], "extract it from the model")
        raise ShapeError(f"{detector} {verb} the {missing[0]}, which {features} does not have; {remedy}")
