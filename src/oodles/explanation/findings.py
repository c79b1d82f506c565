"""What an explanation consists of: plain data and its words, and how it is made from arrays, without torch."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from oodles.calibration import Threshold
from oodles.records.html import html_table

Array = npt.NDArray[Any]

SHOWN = 5  # units, and training rows in text
REDUCTIONS = {"mean": "mean rank", "min": "logarithm of the lowest rank", "fisher": "mean logarithm of the ranks"}
CHECK = "support"  # the detectors that check an ensemble's inputs begin with this name
VERDICTS = {True: "Accepted as in-distribution", False: "Rejected as out-of-distribution", None: "Not decided"}


@dataclass(frozen=True)
class Neighbour:
    """A training row that a detector keeps: its place there, and how similar it is to the input.

    ``similarity`` is the cosine of the two embeddings, for NNGuide times the training row's energy. ``train_row``,
    ``label`` and ``class_name`` are those in the training features, if they were given and contain it.
    """

    index: int
    similarity: float
    train_row: int | None
    label: int | None
    class_name: str | None

    def __str__(self) -> str:
        row = f"kept row {self.index}" if self.train_row is None else f"row {self.train_row}"
        named = row if self.label is None else f"{class_text(self.label, self.class_name)}, {row}"
        return f"{self.similarity:.3f} ({named})"


@dataclass(frozen=True)
class Unit:
    """What one unit adds to the logit of the predicted class, and what it adds on average, if that is known."""

    unit: int
    contribution: float
    usual: float | None

    def __str__(self) -> str:
        return f"unit {self.unit} {_compared(self.contribution, self.usual)}"


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each unit adds to the logit of the predicted class, by whether the sparsifier keeps its weight.

    ``kept`` and ``dropped`` ``(m,)`` are weight times shaped activation, each 0 at the other's units. A shape such as
    SCALE multiplies activations, so both contain its factor and the bias does not. One that multiplies logits, LTS,
    also multiplies the bias; ``factor`` is what all three are multiplied by, 1 without such a shape. ``usual`` has the
    means over the training rows of the same predicted class, if there are any.
    """

    kept: Array
    dropped: Array
    bias: float
    factor: float
    usual: "Contributions | None" = None

    @property
    def logit(self) -> float:
        """The logit that the detector computes, without the dropped weights."""
        return float(self.kept.sum()) + self.bias

    @property
    def dense_logit(self) -> float:
        """The logit with all weights."""
        return self.logit + float(self.dropped.sum())

    def units(self) -> dict[str, list[Unit]]:
        """The units that add most, and those that are furthest from what they add usually."""
        each = self.kept + self.dropped
        usual = None if self.usual is None else self.usual.kept + self.usual.dropped
        groups = {"largest_kept": self.kept, "largest_dropped": self.dropped}
        groups |= {} if usual is None else {"least_usual": each - usual}
        found = {}
        for group, values in groups.items():
            places = np.argsort(-np.abs(values), kind="stable")[:SHOWN]
            shown = places[values[places] != 0].tolist()
            found[group] = [Unit(k, float(each[k]), None if usual is None else float(usual[k])) for k in shown]
        return found

    def as_record(self) -> dict[str, Any]:
        """The totals, the usual ones, and the units."""
        groups = {group: [asdict(unit) for unit in units] for group, units in self.units().items()}
        return {**self._totals(), "usual": None if self.usual is None else self.usual._totals(), **groups}

    def lines(self, name: str) -> list[str]:
        """The same in words, for a predicted class of this name."""
        totals, usual = self._totals(), {} if self.usual is None else self.usual._totals()
        kept, dropped = (_compared(totals[part], usual.get(part)) for part in ("kept", "dropped"))
        times = "" if self.factor == 1 else f", each including the logit factor {self.factor:.3g}"
        meaning = f"; usually: on average over training rows predicted as {name}" if usual else ""
        groups = [(group.replace("_", " "), units) for group, units in self.units().items() if units]
        return [
            f"logit of {name}: kept weights {kept}, bias {self.bias:+.2g}, not counted: dropped weights {dropped}"
            f"{times}{meaning}",
            *(f"{group}: {', '.join(map(str, units))}" for group, units in groups),
        ]

    def _totals(self) -> dict[str, float]:
        sums = {"kept": float(self.kept.sum()), "dropped": float(self.dropped.sum())}
        return sums | {name: getattr(self, name) for name in ("bias", "factor", "logit", "dense_logit")}


@dataclass(frozen=True, eq=False)
class Finding:
    """One detector's score of the input and what it is based on; the detector alone, or a member of an ensemble.

    ``p_value`` is the fraction of held-out ID scores that are at most as large, interpolated between the quantiles that
    the ensemble keeps of them; ``n`` quantiles cannot tell fractions below ``1 / n`` apart, so it is never smaller than
    that. ``id_lowest`` and ``id_median`` are the first and the middle quantile. A detector alone has none of the three.
    """

    spec: str
    score: float
    p_value: float | None
    id_lowest: float | None
    id_median: float | None
    neighbours: tuple[Neighbour, ...]
    contributions: Contributions | None

    def as_record(self) -> dict[str, Any]:
        """Everything as numbers and text."""
        parts = None if self.contributions is None else self.contributions.as_record()
        return {**vars(self), "neighbours": [asdict(each) for each in self.neighbours], "contributions": parts}

    def lines(self, name: str) -> list[str]:
        """The same in words, for a predicted class of this name."""
        lines = [] if self.contributions is None else self.contributions.lines(name)
        if self.neighbours:
            lines.insert(0, f"nearest training rows, by similarity: {', '.join(map(str, self.neighbours[:SHOWN]))}")
        if self.p_value is None or self.id_lowest is None:
            return lines
        sign = "<" if self.score < self.id_lowest else "="
        found = f"score {self.score:.3g}, ID scores: lowest {self.id_lowest:.3g}, median {self.id_median:.3g}"
        return [f"p {sign} {self.p_value:.2f}  {self.spec}: {found}", *(f"          {line}" for line in lines)]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why one input was accepted or rejected; ``str()`` gives it in words, :meth:`as_record` as plain data.

    ``findings`` has one entry for a single detector, and for an ensemble, which combines them by its ``reduction``, one
    per member, the one with the lowest p-value first. An input with NaN or infinite values has no label, no findings
    and the score NaN. Without a threshold ``is_id`` is None.
    """

    label: int | None
    class_name: str | None
    score: float
    threshold: float | None
    id_rate: float | None
    is_id: bool | None
    reduction: str | None
    findings: tuple[Finding, ...]

    def as_record(self) -> dict[str, Any]:
        """Plain data for JSON: no arrays, units by their index, and None for numbers that are not finite."""
        record: dict[str, Any] = _plain({**vars(self), "findings": [each.as_record() for each in self.findings]})
        return record

    def __str__(self) -> str:
        name = "the predicted class" if self.label is None else class_text(self.label, self.class_name)
        lines = [f"{VERDICTS[self.is_id]}: {self._reason()}"] + ([] if self.label is None else [f"Predicted: {name}"])
        if self.reduction is not None and any(finding.spec.startswith(CHECK) for finding in self.findings):
            lines.append(f"It is far from all training inputs, so a check lowers the score further ({CHECK})")
        if self.reduction is not None and self.findings:
            combined = REDUCTIONS[self.reduction]
            lines.append(
                f"The score is the {combined} of these detectors, each read from a normal curve fitted "
                "to held-out ID scores. Lowest p first, the fraction of those scores at most as high:"
            )
        return "\n".join([*lines, *(f"  {line}" for finding in self.findings for line in finding.lines(name))])

    def _repr_html_(self) -> str:
        rows = (
            (each.spec, *map(_short, (each.p_value, each.score, each.id_lowest, each.id_median)))
            for each in self.findings
        )
        named = "" if self.label is None else f" Predicted: {class_text(self.label, self.class_name)}"
        header = ("detector", "p", "score", "lowest ID score", "median ID score")
        return html_table(VERDICTS[self.is_id], rows, *header, more=f": {self._reason()}.{named}")

    def _reason(self) -> str:
        if math.isnan(self.score):
            return "it cannot be scored, because its embedding, logits or score are not finite"
        if self.threshold is None or self.id_rate is None:
            return f"the score is {self.score:.4g}, and no threshold was given"
        # as many digits as it takes to see which of the two is larger
        digits = next((n for n in range(3, 17) if f"{self.score:.{n}g}" != f"{self.threshold:.{n}g}"), 3)
        relation = f"{'at least' if self.is_id else 'below'} the threshold {self.threshold:.{digits}g}"
        rate = f"which accepts {100 * self.id_rate:.4g} % of ID inputs"
        return f"the score {self.score:.{digits}g} is {relation}, {rate}"


class Ranks(NamedTuple):
    """What an ensemble ranks its members' scores by: quantiles of held-out ID scores, and their centre and spread.

    One row, or one number, per member. ``limits`` says below how many deviations from the centre a member counts: None
    for any, a number for a check, which has a finding only where it lowers the score.
    """

    reference: Array
    centre: Array
    spread: Array
    limits: Sequence[float | None]


class Part(NamedTuple):
    """What one detector says about each row."""

    spec: str
    scores: Array
    neighbours: Sequence[tuple[Neighbour, ...]]
    contributions: Sequence[Contributions | None]

    def findings(self, reference: Array | None = None) -> list[Finding]:
        """Return one finding per row; ``reference`` are the quantiles, if it is a member of an ensemble."""
        fractions: list[float | None] = [None] * len(self.scores)
        lowest = median = None
        if reference is not None:
            quantiles = reference.astype(np.float64)
            count, lowest, median = len(quantiles), float(quantiles[0]), float(np.median(quantiles))
            below = np.interp(self.scores.astype(np.float64), quantiles, np.linspace(0, 1, count))
            fractions = np.clip(below, 1 / count, 1).tolist()
        rows = zip(self.scores.tolist(), fractions, self.neighbours, self.contributions, strict=True)
        return [
            Finding(self.spec, score, fraction, lowest, median, near, parts) for score, fraction, near, parts in rows
        ]


def findings_by_row(parts: Sequence[Part], ranks: Ranks | None) -> list[tuple[Finding, ...]]:
    """Return the findings of each row: one of a detector alone, of an ensemble's members the lowest p-value first."""
    if ranks is None:
        return [(found,) for found in parts[0].findings()]
    findings = [part.findings(reference) for part, reference in zip(parts, ranks.reference, strict=True)]
    scores = np.array([part.scores for part in parts], np.float64)
    centre, spread = (each.astype(np.float64)[:, None] for each in (ranks.centre, ranks.spread))
    with np.errstate(over="ignore"):
        deviations = (scores - centre) / spread
    deviations = np.nan_to_num(deviations, nan=-np.inf)
    shares = np.array([[found.p_value for found in part] for part in findings], np.float64)
    # quantiles cannot tell the lowest scores apart, deviations can
    order = np.lexsort((deviations, np.nan_to_num(shares, nan=-1.0)), axis=0)
    limits = np.array([np.inf if limit is None else limit for limit in ranks.limits])[:, None]
    counts = (deviations < limits) | np.isinf(limits)
    return [
        tuple(findings[place][row] for place in places if counts[place, row])
        for row, places in enumerate(order.T.tolist())
    ]


def explanations_of(
    scores: Array,
    decisions: Sequence[bool | None],
    labels: Array | None,
    findings: Sequence[tuple[Finding, ...]],
    *,
    class_names: Sequence[str],
    threshold: Threshold | None,
    reduction: str | None,
) -> list[Explanation]:
    """Return one explanation per row; a row whose score is NaN has neither a label nor findings."""
    limit = None if threshold is None else threshold.value
    id_rate = None if threshold is None else threshold.id_rate
    explanations = []
    for row, (score, is_id, found) in enumerate(zip(scores.tolist(), decisions, findings, strict=True)):
        scored = not math.isnan(score)
        label = int(labels[row]) if scored and labels is not None else None
        name = name_of(label, class_names)
        shown = found if scored else ()
        explanations.append(Explanation(label, name, score, limit, id_rate, is_id, reduction, shown))
    return explanations


def name_of(label: int | None, class_names: Sequence[str]) -> str | None:
    """The name of a class, if it is known."""
    return class_names[label] if label is not None and 0 <= label < len(class_names) else None


def class_text(label: int, class_name: str | None) -> str:
    """What a class is called: its name, or its number if it has none."""
    return f"class {label}" if class_name is None else class_name


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _compared(value: float, usual: float | None) -> str:
    return f"{value:+.2g}" if usual is None else f"{value:+.2g} (usually {usual:+.2g})"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
