"""From what an exported guard's graph computes to explanations, with NumPy alone.

The graph has outputs for it after those of a verdict: ``member_score`` ``(n, members)`` of an ensemble, and of the
``s`` detectors that sparsify the head ``kept`` and ``dropped`` ``(n, s, units)``, ``bias`` and ``factor`` ``(n, s)``.
"""

from collections.abc import Sequence

import numpy as np

from oodles.deploy.artefact import Arrays, Artefact
from oodles.errors import FileError
from oodles.explanation.findings import Contributions, Finding, Part, Ranks, findings_by_row
from oodles.records.files import Record

MEMBER_SCORE, CONTRIBUTIONS = "member_score", ("kept", "dropped", "bias", "factor")
RANKS = ("reference_", "centre_", "spread_")  # the tensors that an ensemble ranks its members by


def output_names(record: Record) -> tuple[str, ...]:
    """The outputs of a graph that explains what the record's field ``explanation`` says."""
    return (*([MEMBER_SCORE] if record["members"] else ()), *(CONTRIBUTIONS if record["sparsified"] else ()))


def findings_of(record: Record, ranks: Ranks | None, outputs: Arrays) -> list[tuple[Finding, ...]]:
    """Return the findings of each row: of the detector that a guard's record names, or of an ensemble's members."""
    about, scores = record["explanation"], outputs["score"]
    specs = about["members"] or [record["spec"]]
    contributions: list[Sequence[Contributions | None]] = [[None] * len(scores) for _ in specs]
    columns = (outputs[name].swapaxes(0, 1).astype(np.float64) for name in CONTRIBUTIONS if about["sparsified"])
    for number, kept, dropped, bias, factor in zip(about["sparsified"], *columns, strict=True):
        contributions[number] = list(map(Contributions, kept, dropped, bias.tolist(), factor.tolist()))
    own = scores[None]
    if ranks is not None:
        own = np.where(np.isfinite(outputs[MEMBER_SCORE]), outputs[MEMBER_SCORE], np.nan).T
    unknown = [()] * len(scores)
    parts = zip(specs, own, contributions, strict=True)
    return findings_by_row([Part(spec, values, unknown, shown) for spec, values, shown in parts], ranks)


def read_ranks(artefact: Artefact) -> Ranks | None:
    """Return what the ensemble learned of its members' scores on held-out ID inputs; None if there is no ensemble."""
    limits = artefact.record["explanation"]["limits"]
    if not limits:
        return None
    given = [artefact.arrays.get(name, np.empty(0)) for name in RANKS]
    reference, centre, spread = given
    usable = all(each.dtype.kind == "f" and bool(np.isfinite(each).all()) for each in given) and (
        reference.ndim == 2
        and len(reference) == len(limits)
        and reference.shape[1] >= 2
        and centre.shape == spread.shape == (len(limits),)
        and bool((np.diff(reference, axis=1) >= 0).all())
        and bool((spread > 0).all())
    )
    if not usable:
        raise FileError(f"{artefact.path} has no usable reference scores of its ensemble; export the guard again")
    return Ranks(reference, centre, spread, limits)
