"""``Monitor``: whether a stream of scored inputs is still like the calibration set."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from oodles.calibration import Threshold
from oodles.errors import ArgumentError, FileError
from oodles.monitor.alerts import Alert, AlertRule
from oodles.monitor.bounds import CalibratedRate, dkw_margin
from oodles.monitor.evidence import SMALL_P, Bets, Evidence, check_batch
from oodles.monitor.summaries import (
    MAX_CLASSES,
    MAX_WINDOW,
    MAX_WINDOWS,
    ClassCounts,
    Count,
    ScoreHistogram,
    Value,
    Window,
    Windows,
)
from oodles.records.fields import ThresholdFields
from oodles.records.files import Digest, Fields, read_record, write_record

REJECTIONS, P_VALUES = "rejections", "p_values"
WINDOW = 200
KIND, SCHEMA = "monitor", 1
MAX_ALERTS = 50  # that are remembered
SLOT, MAX_SLOTS = 60, 1440  # seconds of a slot of the clock, and slots that are kept: one day
Label = Annotated[str, Meta(pattern="^(-1|0|[1-9][0-9]{0,17})$")]


class Monitor:
    """Watches scored inputs for drift, without labels or times: give it every batch that a guard has scored.

    ``threshold`` is the guard's, with the scores of its calibration set if they are known: without them only
    rejections are watched. ``classes`` are names, ``guard`` is an identity that a saved state must share, ``window`` is
    the number of inputs per window of the chart, and ``class_counts`` says how often each label was predicted on
    the calibration set, if that is known.

    Two kinds of evidence are followed, each by a test of the whole stream and by an e-detector, see
    :mod:`oodles.monitor.evidence`. *Rejections*: a rejection has probability at most ``r0``, an upper bound from the
    calibration set. *P-values*: a p-value of at most ``u`` has probability at most ``u + e``, where ``e`` is the
    margin of Dvoretzky, Kiefer and Wolfowitz for the size of the calibration set. For if at most ``j - 1`` of n
    calibration scores are at most the input's score, then it is less than the j-th smallest of them, whose distribution
    function there is at most ``(j - 1) / n + e``, everywhere at once but for a small probability. Of the allowed error
    of the rule each kind has an equal share, one half of it for its bound and the other for its test.

    Memory does not grow with the stream. A monitor is not thread-safe: call it from one thread at a time.

    >>> threshold = Threshold(value=0.0, id_rate=0.95, calibration_size=1000)
    >>> monitor = Monitor(threshold)
    >>> scores = np.full(200, -1.0)  # all rejected
    >>> alerts = monitor.observe(score=scores, p_value=scores * math.nan, label=[0] * 200, is_id=scores > 0)
    >>> [(alert.kind, alert.since) for alert in alerts]
    [('rejections', 100)]
    """

    def __init__(
        self,
        threshold: Threshold,
        *,
        classes: Sequence[str] = (),
        guard: str = "",
        rule: AlertRule | None = None,
        window: int = WINDOW,
        class_counts: Mapping[int, int] | None = None,
    ) -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise ArgumentError(f"window={window} must be a number of inputs from 1 to {MAX_WINDOW:,}")
        self.threshold, self.guard, self.class_names = threshold, guard, tuple(classes)
        self.rule = AlertRule() if rule is None else rule
        self.rate = CalibratedRate.of(threshold)
        scores = threshold.id_scores if threshold.id_scores is not None and len(threshold.id_scores) else None
        self._share = self.rule.error / (1 if scores is None else 2)  # of the allowed error
        self.upper = self.rate.upper(self._share / 2)
        self._evidence = {REJECTIONS: Evidence(Bets((self.upper,)))}
        if scores is not None:
            margin = dkw_margin(len(scores), self._share / 2)
            self._evidence[P_VALUES] = Evidence(Bets(tuple(min(1.0, level + margin) for level in SMALL_P)))
        self.inputs = self.rejected = self.errors = 0
        self.windows = Windows(window, [])
        self._scores = ScoreHistogram(scores)
        self._classes = ClassCounts(classes, class_counts)
        self.alerts: list[Alert] = []  # the last ones
        self.raised = 0  # how many there were in all
        self._stands = False  # whether the last one does
        self._last = 0  # input at which there was last enough evidence for one
        self.acknowledged = False  # whether somebody has seen the one that stands
        self.slots: dict[int, npt.NDArray[np.int64]] = {}  # inputs and counts of events by slot, kind after kind

    @property
    def alarm_at(self) -> float:
        """The value of an e-detector that is an alarm; the promised rate of false alarms is shared by the kinds."""
        return float(self.rule.false_alarm_every * len(self._evidence))

    @property
    def bets(self) -> list[Bets]:
        """The bets of each kind of evidence."""
        return [each.bets for each in self._evidence.values()]

    @property
    def alert(self) -> Alert | None:
        """The alarm that stands now."""
        return self.alerts[-1] if self._stands else None

    # Observing ----------------------------------------------------------------------------------

    def observe(
        self,
        *,
        score: npt.ArrayLike,
        p_value: npt.ArrayLike,
        label: npt.ArrayLike,
        is_id: npt.ArrayLike,
        time: float | None = None,
    ) -> list[Alert]:
        """Take a batch into account, one entry per input and in order; returns the alarms that it raises.

        Scores and p-values may be NaN. An input that could not be scored does not belong here but to
        :meth:`count_errors`. The state does not depend on how a stream is divided into batches. ``time`` is that of
        the batch, in seconds since 1970: with it, states of several monitors can be merged
        (:mod:`oodles.monitor.replicas`).
        """
        scores, p_values = np.asarray(score, np.float64), np.asarray(p_value, np.float64)
        labels, accepted = np.asarray(label), np.asarray(is_id)
        check_batch(scores, p_values, labels, accepted)
        rejected = ~accepted
        events = {REJECTIONS: rejected[:, None], P_VALUES: p_values[:, None] <= SMALL_P}
        rows = {REJECTIONS: np.arange(len(scores)), P_VALUES: np.flatnonzero(~np.isnan(p_values))}
        traces = {kind: np.zeros(len(scores)) for kind in events}
        before = self._counts()
        crossed: list[tuple[int, str]] = []
        for kind, evidence in self._evidence.items():
            place = rows[kind]
            traces[kind][place], alarms = evidence.observe(events[kind][place], self.alarm_at, self.rule.minimum)
            crossed += [(self.inputs + int(place[alarm]) + 1, kind) for alarm in alarms]
        self.windows.observe(rejected, traces[REJECTIONS], traces[P_VALUES])
        self._scores.observe(scores)
        self._classes.observe(labels)
        self.inputs += len(scores)
        self.rejected += int(np.count_nonzero(rejected))
        if time is not None and len(scores):
            slot = int(time // SLOT)
            self.slots[slot] = self.slots.get(slot, 0) + self._counts() - before
            self.slots = {each: self.slots[each] for each in sorted(self.slots)[-MAX_SLOTS:]}
        return self._raise(crossed)

    def _counts(self) -> npt.NDArray[np.int64]:
        """Return the inputs and the counts of events of each kind, one after the other."""
        return np.concatenate([[each.inputs, *each.counts] for each in self._evidence.values()]).astype(np.int64)

    def acknowledge(self) -> None:
        """Note that somebody has seen the alarm that stands; it stands on, and the next one is not acknowledged."""
        self.acknowledged = self._stands

    def count_errors(self, number: int = 1) -> None:
        """Count inputs that could not be scored; they say nothing about the stream."""
        if number < 0:
            raise ArgumentError(f"{number} inputs cannot have failed; give a number of at least 0")
        self.errors += number

    def _raise(self, crossed: Sequence[tuple[int, str]]) -> list[Alert]:
        """The alarms at these inputs that do not belong to one that stands already."""
        new = []
        for place, kind in sorted(crossed):
            if not self._stands or place - self._last > self.rule.cooldown:
                new.append(Alert(kind, place, self._describe(kind)))
                self.acknowledged = False
            self._stands, self._last = True, place
        self._stands = self._stands and self.inputs - self._last <= self.rule.cooldown
        self.acknowledged = self.acknowledged and self._stands
        self.alerts = [*self.alerts, *new][-MAX_ALERTS:]
        self.raised += len(new)
        return new

    def _describe(self, kind: str) -> str:
        if kind == REJECTIONS:
            return f"more inputs are rejected than the calibration set explains (at most {self.upper:.2%})"
        return "more inputs have low scores than the calibration set explains, rejected or not"

    # Reporting ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Everything that is known, as plain values for JSON: counts, windows, evidence, distributions, the alarm.

        ``expected`` has the rejection rate of ID inputs, on average over calibration sets, and its upper bound for this
        one. ``evidence`` are the e-detectors, ``whole_stream`` the largest wealth of each test so far; a test
        rejects if that is at least ``alarm_at``. Windows, and ``limit`` of the scores, are not corrected for repeated
        looks.
        """
        values = {kind: evidence.value for kind, evidence in self._evidence.items()}
        best = {kind: math.exp(min(evidence.best, 700.0)) for kind, evidence in self._evidence.items()}
        return {
            "inputs": self.inputs,
            "rejected": self.rejected,
            "errors": self.errors,
            "rate": self.rejected / self.inputs if self.inputs else None,
            "expected": {"rate": self.rate.expected, "upper": self.upper},
            "windows": self.windows.as_records(self.inputs, self.rate),
            "alarm": None if self.alert is None else self.alert.as_record(),
            "alarms": self.raised,
            "acknowledged": self.acknowledged,
            "evidence": {REJECTIONS: values[REJECTIONS], P_VALUES: values.get(P_VALUES), "alarm_at": self.alarm_at},
            "whole_stream": {
                REJECTIONS: best[REJECTIONS],
                P_VALUES: best.get(P_VALUES),
                "alarm_at": 2 / self._share,
                "differs": self.differs,
            },
            "scores": self._scores.as_record(),
            "classes": self._classes.as_records(),
            "class_distance": self._classes.distance(),
        }

    @property
    def differs(self) -> bool:
        """Whether the test of the whole stream says that it is not like the calibration set."""
        return any(evidence.best >= math.log(2 / self._share) for evidence in self._evidence.values())

    def test_set(self) -> float:
        """Return the p-value of all inputs so far as one set: small if they are not like the calibration set.

        For inputs without an order, such as the files of a folder, looked at once. The number of rejections, and that
        of p-values up to each level, are compared with their exact distribution over calibration sets and inputs
        (:meth:`CalibratedRate.excess`); the smallest probability counts, times the number of comparisons.
        """
        found = [self.rate.excess(self.inputs, self.rejected)]
        if P_VALUES in self._evidence:
            evidence, size = self._evidence[P_VALUES], self.rate.size
            ranks = (math.floor(level * (size + 1) + 1e-9) for level in SMALL_P)
            pairs = zip(ranks, evidence.counts.tolist(), strict=True)
            levels = [CalibratedRate(rank, size).excess(evidence.inputs, count) for rank, count in pairs if rank]
            found.append(len(levels) * min(levels, default=1.0))
        return min(1.0, len(found) * min(found))

    def peak(self) -> tuple[float, int, int]:
        """Return the largest evidence in the windows that are kept, with the first and last input of its window."""
        places = zip(self.windows.kept, self.windows.as_records(self.inputs, self.rate), strict=True)
        peaks = [(max(each.rejections, each.p_values), -place["first"], place["last"]) for each, place in places]
        value, first, last = max(peaks, default=(0.0, 0, 0))
        return value, -first, last

    # State --------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the state to a file of a few kilobytes, atomically."""
        write_record(Path(path), self._record())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        threshold: Threshold,
        classes: Sequence[str] = (),
        guard: str = "",
        rule: AlertRule | None = None,
        class_counts: Mapping[int, int] | None = None,
    ) -> "Monitor":
        """Continue from a file, with the rule of that file or another one with the same ``error``.

        A file of another guard or threshold, and one that is damaged, is an error.
        """
        path = Path(path)
        record = read_record(path, kind=KIND, schema=SCHEMA, fields=MonitorFields)
        saved = AlertRule(**record["rule"])
        monitor = cls(
            threshold,
            classes=classes,
            guard=guard,
            rule=saved if rule is None else rule,
            window=record["window"],
            class_counts=class_counts,
        )
        if record["guard"] != guard or record["threshold"] != monitor._identity():
            raise FileError(f"{path} is the state of another guard or threshold; begin a new one under another name")
        if saved.error != monitor.rule.error:
            raise FileError(
                f"{path} was begun with error={saved.error:g}, which its evidence depends on, not "
                f"{monitor.rule.error:g}; keep it, or begin a new state under another name"
            )
        monitor._restore(record, path)
        return monitor

    def _identity(self) -> dict[str, Any]:
        """What the evidence was gathered against."""
        return {**self.threshold.as_record(), "id_scores": self.threshold.digest()}

    def _record(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "guard": self.guard,
            "threshold": self._identity(),
            "rule": asdict(self.rule),
            "window": self.windows.size,
            "inputs": self.inputs,
            "rejected": self.rejected,
            "errors": self.errors,
            "evidence": {
                kind: {
                    "inputs": each.inputs,
                    "counts": each.counts.tolist(),
                    "best": each.best,
                    "values": each.values.tolist(),
                    "since": each.since,
                }
                for kind, each in self._evidence.items()
            },
            "windows": [list(each) for each in self.windows.kept],
            "scores": self._scores.counts.tolist(),
            "not_finite": self._scores.not_finite,
            "classes": {str(label): count for label, count in self._classes.counts.items()},
            "alerts": [each.as_record() for each in self.alerts],
            "raised": self.raised,
            "stands": self._stands,
            "last": self._last,
            "acknowledged": self.acknowledged,
            "slots": [[slot, *counts.tolist()] for slot, counts in self.slots.items()],
        }

    def _restore(self, record: Mapping[str, Any], source: object) -> None:
        """Take over a record that :meth:`_record` made for the same threshold and rule."""
        consistent = (
            record["evidence"].keys() == self._evidence.keys(),
            all(
                len(each["counts"]) == len(self._evidence[kind].counts)
                and len(each["values"]) == len(self._evidence[kind].values)
                for kind, each in record["evidence"].items()
                if kind in self._evidence
            ),
            len(record["scores"]) == len(self._scores.counts),
            record["rejected"] <= record["inputs"],
            bool(record["alerts"]) or not record["stands"],
            all(len(each) == 1 + len(self._counts()) for each in record["slots"]),
        )
        if not all(consistent):
            raise FileError(f"{source} does not fit this version of oodles; begin a new state under another name")
        self.inputs, self.rejected, self.errors = record["inputs"], record["rejected"], record["errors"]
        for kind, each in record["evidence"].items():
            evidence = self._evidence[kind]
            evidence.inputs, evidence.since, evidence.best = each["inputs"], each["since"], each["best"]
            evidence.counts = np.array(each["counts"], dtype=np.int64)
            evidence.values = np.array(each["values"], dtype=np.float64)
        self.windows.kept = [Window(*each) for each in record["windows"]]
        self._scores.counts = np.array(record["scores"], dtype=np.int64)
        self._scores.not_finite = record["not_finite"]
        self._classes.counts.update({int(label): count for label, count in record["classes"].items()})
        self.alerts = [Alert(**each) for each in record["alerts"]]
        self.raised, self._stands, self._last = record["raised"], record["stands"], record["last"]
        self.acknowledged = record["acknowledged"]
        self.slots = {slot: np.array(counts, dtype=np.int64) for slot, *counts in record["slots"]}


class _Threshold(ThresholdFields, forbid_unknown_fields=True):
    id_scores: Digest | None


class _Evidence(Struct, forbid_unknown_fields=True):
    inputs: Count
    counts: Annotated[list[Count], Meta(max_length=100)]
    best: Value
    values: Annotated[list[Value], Meta(max_length=1000)]
    since: Count


class MonitorFields(Fields):
    """The record of a :class:`oodles.monitor.Monitor`."""

    guard: str
    threshold: _Threshold
    rule: AlertRule
    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW)]
    inputs: Count
    rejected: Count
    errors: Count
    evidence: dict[Literal["rejections", "p_values"], _Evidence]
    windows: Annotated[list[Window], Meta(max_length=MAX_WINDOWS)]
    scores: Annotated[list[Count], Meta(max_length=1000)]
    not_finite: Count
    classes: Annotated[dict[Label, Count], Meta(max_length=MAX_CLASSES + 1)]
    alerts: Annotated[list[Alert], Meta(max_length=MAX_ALERTS)]
    raised: Count
    stands: bool
    last: Count
    acknowledged: bool
    slots: Annotated[list[Annotated[list[Count], Meta(min_length=1, max_length=100)]], Meta(max_length=MAX_SLOTS)]
