"""``Detector``: the ceremony every method shares, so that a method writes only its mathematics."""

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from oodles.calls import write_call
from oodles.detectors.statistics import Statistic
from oodles.errors import ArgumentError, FileError, NotFittedError, ShapeError
from oodles.features import Features, Head
from oodles.files import member, read_record, write_record, write_tensors
from oodles.perturbation import Step

KIND = "detector"
SCHEMA = 1
RECORD = "detector.json"

Statistics = dict[str, Any]


class Described(nn.Module):
    """A module that knows the arguments it was made with: constructors take keywords and store them as given."""

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, in its order."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def extra_repr(self) -> str:
        """The arguments that say something, as written in a call."""
        shown = {name: value for name, value in self.arguments().items() if value is not None and value != ()}
        return ", ".join(f"{name}={getattr(value, '__name__', value)!s}" for name, value in shown.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class Detector(Described):
    """Ranks inputs by how in-distribution they look: ``fit`` on ID features, then ``score``.

    What a detector learns are buffers whose names end in ``_``, so ``.to()`` and ``state_dict`` work
    as on any module. ``fit`` folds over batches; ``partial_fit``, ``merge`` and ``finish`` are the same
    fold in pieces, for data that arrives in parts or is seen by many processes.

    A method says what it ``learns_from`` and ``scores_from`` (``embedding``, ``logits``, ``labels``,
    ``head``, ``layer.<name>``) and writes :meth:`begin`, :meth:`observe`, :meth:`learn` and :meth:`forward`.

    One that needs more of the network than embeddings says so, and whoever has the network runs it: ``layers``
    are the inner modules to keep, :meth:`steps` the input steps it scores after. What is left to choose with the
    network at hand (``tuned`` is False) is decided by :func:`oodles.tune` from the :meth:`trials` on held-out images,
    and on adversarial copies of them where the method ``learns_against`` such; it fills the buffers ``tunes``.
    ``remarks`` say what a fit left out, if anything. ``shares`` is for those whose statistics are of the embeddings
    and of nothing else, by the same names.
    """

    learns_from: tuple[str, ...] = ()
    scores_from: tuple[str, ...] = ("embedding", "logits")
    layers: tuple[str, ...] = ()
    learns_against = False
    tunes: tuple[str, ...] = ()
    shares = False
    remarks: tuple[str, ...] = ()
    shape_: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shape_", None)
        self._statistics: Statistics | None = None
        self._head: Head | None = None
        self._seen = (0, 0)
        self._ended = False

    # What a method writes ---------------------------------------------------------------------

    def begin(self) -> dict[str, Statistic]:
        """Fresh, empty statistics."""
        return {}

    def observe(self, batch: Features, statistics: Statistics) -> None:
        """Add one batch to the statistics."""

    def learn(self, statistics: Statistics, head: Head | None) -> None:
        """Turn the statistics into buffers."""

    @abstractmethod
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        """Scores ``(n,)`` from ``(n, m)`` and ``(n, C)``; one not in ``scores_from`` may be ``(n, 0)``.

        ``others`` are the further columns of ``scores_from``, in its order.
        """

    @property
    def spec(self) -> str:
        """The detector in one line that :func:`oodles.parse` reads back: its name and what is not a default."""
        usual = {name: given.default for name, given in inspect.signature(type(self)).parameters.items()}
        given = {name: value for name, value in self.arguments().items() if value != usual[name]}
        return write_call(type(self).__name__.lower(), given)

    def steps(self) -> tuple[Step, ...]:
        """The input steps scores are made after, as far as they are known."""
        return ()

    def trials(self) -> tuple[Step, ...]:
        """The input steps whose outcome on held-out images :meth:`tune` wants to see."""
        return ()

    def tune(self, held_out: Features, adversarial: Features | None = None) -> None:
        """Decide what could not be learned from embeddings."""

    @property
    def tuned(self) -> bool:
        """Whether nothing is left for :func:`oodles.tune`."""
        return True

    # Fitting ----------------------------------------------------------------------------------

    def fit(self, features: Features) -> Self:
        """Learn from ID training features, forgetting whatever was learned before."""
        fit_together([self], features)
        return self

    def partial_fit(self, batch: Features) -> Self:
        """Add one batch; :meth:`finish` ends the fold."""
        if self._ended:
            raise ArgumentError(
                f"{self} was fitted in one go and kept nothing to add to; begin a new one with partial_fit"
            )
        self.observe(batch, self._receive(batch, None))
        return self

    def _receive(self, batch: Features, shared: Statistics | None) -> Statistics:
        """Check that a batch fits those before it; gives the statistics it goes into, begun from shared ones if any."""
        self._require(batch, self.learns_from, "learns from")
        if self._statistics is None:
            begun = self.begin()
            if shared is not None:
                begun = {name: shared.setdefault(name, statistic) for name, statistic in begun.items()}
            self._statistics, self._head, self._seen = begun, batch.head, (batch.width, batch.classes)
        self._check_alike(batch.head, (batch.width, batch.classes), batch)
        return self._statistics

    def merge(self, other: "Detector") -> Self:
        """Take in what another detector of the same kind has observed; :meth:`finish` ends the fold."""
        if repr(other) != repr(self):
            raise ArgumentError(f"{self} cannot merge {other}: they are not the same detector")
        if other._statistics is None:
            raise NotFittedError(f"{other} has observed nothing to merge; call .partial_fit(batch) on it first")
        if self._statistics is None:
            self._statistics, self._head, self._seen = self.begin(), other._head, other._seen
        self._check_alike(other._head, other._seen, other)
        for name, statistic in self._statistics.items():
            statistic.merge(other._statistics[name])
        return self

    def finish(self) -> Self:
        """End the fold: turn what was observed into what scores need."""
        if self._statistics is None:
            raise NotFittedError(f"{self} has observed nothing; call .fit(features) or .partial_fit(batch) first")
        self.shape_ = None
        self.learn(self._statistics, self._head)
        if self.learns_from:
            self.shape_ = torch.tensor(self._seen)
        return self

    @property
    def fitted(self) -> bool:
        """Whether there is nothing left to learn."""
        return self.tuned and (not self.learns_from or self.shape_ is not None)

    @property
    def extras(self) -> tuple[str, ...]:
        """The columns it scores from beside embedding and logits."""
        return tuple(column for column in self.scores_from if column not in INPUTS)

    # Scoring ----------------------------------------------------------------------------------

    def score(self, features: Features) -> Tensor:
        """Scores ``(n,)`` on the CPU, larger = more in-distribution; float64 if the detector is."""
        self.require_fitted()
        self._require(features, self.scores_from, "scores from")
        self._check_shape(features)
        floating = next((buffer for buffer in self.buffers() if buffer.is_floating_point()), None)
        with torch.no_grad():
            parts = []
            for batch in features.batches():
                columns = [batch.column(name) if name in self.scores_from else None for name in INPUTS]
                columns += [batch.column(name) for name in self.extras]
                first = next(column for column in columns if column is not None)
                like = floating if floating is not None else first.new_empty(0, dtype=_score_dtype(first))
                nothing = like.new_empty(len(batch), 0)
                parts.append(self(*(nothing if column is None else column.to(like) for column in columns)).cpu())
        return torch.cat(parts)

    @property
    def needs_network(self) -> bool:
        """Whether plain features are not enough: inner layers, input steps, or something left to tune."""
        return bool(self.layers or self.steps() or not self.tuned)

    @property
    def needs_head(self) -> bool:
        """Whether there must be a last linear layer to look at."""
        return bool({"embedding", "head"} & {*self.learns_from, *self.scores_from})

    def require_fitted(self) -> None:
        """Raise unless there is nothing left to learn."""
        if self.fitted:
            return
        remedy = "call .fit(features) first"
        if not self.tuned and (not self.learns_from or self.shape_ is not None):
            remedy = "call oodles.tune([detector], model, held_out_loader) first"
        raise NotFittedError(f"{self} has not been fitted; {remedy}")

    def _check_shape(self, features: Features) -> None:
        if self.shape_ is None:
            return
        width, classes = self.shape_.tolist()
        for name, want, got in (("embedding", width, features.width), ("logits", classes, features.classes)):
            if name in self.scores_from and want != got:
                noun = "embeddings" if name == "embedding" else "logits"
                raise ShapeError(
                    f"{self} was fitted on {noun} of width {want}, got {got}; are both from the same model?"
                )

    def _check_alike(self, head: Head | None, seen: tuple[int, int], what: object) -> None:
        if not self.learns_from:
            return
        if seen != self._seen:
            raise ShapeError(f"{self} has observed (width, classes) {self._seen}, {what} has {seen}")
        if "head" not in self.learns_from or head is self._head or head is None or self._head is None:
            return
        if not head.same_as(self._head):
            raise ShapeError(f"{self} has observed features of another head; are all of them from the same model?")

    def _require(self, features: Features, columns: tuple[str, ...], verb: str) -> None:
        missing = [column for column in columns if not features.holds(column)]
        if missing:
            raise ShapeError(
                f"{self} {verb} the {missing[0]}, which {features} does not hold; extract it from the model"
            )

    # On disk ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted detector to the folder ``path``: safetensors and JSON, never pickle."""
        save_detector(self, Path(path))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        adopt_buffers(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)


INPUTS = ("embedding", "logits")


def fit_together(detectors: Sequence[Detector], features: Features) -> None:
    """Fit several detectors in one pass over the features, which may be larger than memory.

    Those that learn from the same statistics of embeddings share them, so a hundred cost little more than one.
    """
    for detector in detectors:
        detector._statistics, detector._ended = None, False
    learners = [detector for detector in detectors if detector.learns_from]
    shared: Statistics = {}
    for batch in features.batches() if learners else ():
        for detector in learners:
            if detector.shares:
                detector._receive(batch, shared)
            else:
                detector.partial_fit(batch)
        for statistic in shared.values():
            statistic.add(batch.embedding)
    for detector in learners:
        detector.finish()
        # what a percentile is taken of can be large, so the fold is over for good
        detector._statistics, detector._ended = None, True


def save_detector(detector: Detector, folder: Path) -> None:
    """Write ``detector.json`` and the tensors it points at; replacing an older one is one atomic step."""
    if not detector.fitted:
        raise NotFittedError(f"{detector} has not been fitted, so there is nothing to save")
    state = detector.state_dict()
    before = _tensor_file(folder)
    entry = write_tensors(folder, "detector", state)
    record = {"kind": KIND, "schema": SCHEMA, "spec": detector.spec, "tensors": entry}
    write_record(folder / RECORD, record)
    if before is not None and before.name != entry["file"]:
        before.unlink(missing_ok=True)


def adopt_buffers(module: nn.Module, state: Mapping[str, Tensor], prefix: str = "") -> None:
    """Give a module's unlearned buffers the shapes found in ``state``, so that loading can fill them."""
    for name, buffer in module._buffers.items():
        if buffer is None and prefix + name in state:
            module._buffers[name] = torch.empty_like(state[prefix + name])


def _tensor_file(folder: Path) -> Path | None:
    try:
        return member(folder, read_record(folder / RECORD, kind=KIND, schema=SCHEMA)["tensors"]["file"])
    except FileError:
        return None


def _score_dtype(column: Tensor) -> torch.dtype:
    return torch.float64 if column.dtype == torch.float64 else torch.float32
