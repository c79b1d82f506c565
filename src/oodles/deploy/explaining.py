"""From what an exported guard's graph computes to explanations, with NumPy alone.

The graph has outputs for it after those of a verdict: ``member_score`` ``(n, members)`` of an ensemble, and of the
``s`` detectors that sparsify the head ``kept`` and ``dropped`` ``(n, s, units)``, ``bias`` and ``factor`` ``(n, s)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oodles.deploy.artefact import Arrays, Artefact
from oodles.errors import FileError
from oodles.explanation.findings import Contributions, Finding, Part, Ranks, findings_by_row
from oodles.records.files import Record

MEMBER_SCORE, CONTRIBUTIONS = "member_score", ("kept", "dropped", "bias", "factor")
RANKS = ("reference_", "centre_", "spread_")  # the tensors that an ensemble ranks its members by


def output_names(record: Record) -> tuple[str, ...]:
    """The outputs of a graph that explains what the record's field ``explanation`` says."""
    return (*([MEMBER_SCORE] if record["members"] else ()), *(CONTRIBUTIONS if record["sparsified"] else ()))


@dataclass(frozen=True, eq=False)
class Explainer:
    """Makes findings of a graph's outputs.

    ``specs`` are the detectors that have findings, ``sparsified`` the places of those with contributions among them.
    ``ranks`` are those of an ensemble, ``reduction`` is how it combines its members; None if there is one detector.
    """

    specs: tuple[str, ...]
    sparsified: tuple[int, ...]
    outputs: tuple[str, ...]
    reduction: str | None
    ranks: Ranks | None

    @classmethod
    def of(cls, artefact: Artefact) -> "Explainer":
        """Return what explains the verdicts of an exported guard."""
        record = artefact.record["explanation"]
        members = tuple(record["members"])
        return cls(
            members or (artefact.record["spec"],),
            tuple(record["sparsified"]),
            output_names(record),
            record["reduction"],
            _ranks(artefact, len(members)) if members else None,
        )

    def findings(self, scores: npt.NDArray[np.floating], outputs: Arrays) -> list[tuple[Finding, ...]]:
        """The findings of each row; of an ensemble's members those with the lowest ranks first."""
        contributions: list[Sequence[Contributions | None]] = [[None] * len(scores) for _ in self.specs]
        parts_of_each = (outputs[name].swapaxes(0, 1).astype(np.float64) for name in CONTRIBUTIONS if self.sparsified)
        for number, kept, dropped, bias, factor in zip(self.sparsified, *parts_of_each, strict=True):
            contributions[number] = list(map(Contributions, kept, dropped, bias.tolist(), factor.tolist()))
        own = scores[None]
        if self.ranks is not None:
            own = np.where(np.isfinite(outputs[MEMBER_SCORE]), outputs[MEMBER_SCORE], np.nan).T
        unknown = [()] * len(scores)
        parts = zip(self.specs, own, contributions, strict=True)
        return findings_by_row([Part(spec, values, unknown, shown) for spec, values, shown in parts], self.ranks)


def _ranks(artefact: Artefact, members: int) -> Ranks:
    """What the ensemble learned of its members' scores on held-out ID inputs."""
    given = [artefact.arrays.get(name, np.empty(0)) for name in RANKS]
    reference, centre, spread = given
    usable = all(each.dtype.kind == "f" and bool(np.isfinite(each).all()) for each in given) and (
        reference.ndim == 2
        and reference.shape[0] == members
        and reference.shape[1] >= 2
        and centre.shape == spread.shape == (members,)
        and bool((np.diff(reference, axis=1) >= 0).all())
        and bool((spread > 0).all())
    )
    if not usable:
        raise FileError(f"{artefact.path} has no usable reference scores of its ensemble; export the guard again")
    return Ranks(reference, centre, spread)
