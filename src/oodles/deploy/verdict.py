"""``Verdict``: a guard's answer for a batch, without torch."""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from oodles.explanation.findings import Explanation
from oodles.records.html import html_table

Column = TypeVar("Column")
SHOWN = ("label", "probability", "score", "p_value", "is_id")
MAX_ROWS = 20  # that a notebook shows


class Verdict(NamedTuple, Generic[Column]):
    """A guard's answer for a batch, one entry per input: tensors, or NumPy arrays if the guard is exported.

    ``logits`` are the model's own. ``probability`` is that of ``label`` by the model's softmax, or by its sigmoid if
    an input may have several classes. ``p_value`` is the fraction of ID scores at most as large, NaN if the guard kept
    none. A score that is NaN or infinite is never ID. ``explanations`` are there if they were asked for.

    >>> Verdict(logits=[[0.2, 3.0]], label=[1], probability=[0.94], score=[3.1], p_value=[0.5], is_id=[True]).is_id
    [True]
    """

    logits: Column
    label: Column
    probability: Column
    score: Column
    p_value: Column
    is_id: Column
    explanations: Sequence[Explanation] = ()

    def part(self, start: int, stop: int) -> "Verdict[Column]":
        """Return the verdict for some of the inputs."""
        columns: Any = self
        return Verdict(*(each[start:stop] for each in columns))

    @staticmethod
    def joined(parts: "Sequence[ArrayVerdict]") -> "ArrayVerdict":
        """Return one verdict for the inputs of all parts."""
        columns: list[Any] = [np.concatenate(column) for column in zip(*(part[:-1] for part in parts), strict=True)]
        return Verdict._make([*columns, [each for part in parts for each in part.explanations]])

    def _repr_html_(self) -> str:
        columns: list[Any] = [getattr(self, name)[:MAX_ROWS].tolist() for name in SHOWN]
        texts = (
            [f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row] for row in zip(*columns, strict=True)
        )
        every: Any = self.label
        return html_table("Verdict", texts, *SHOWN, more=f": {len(columns[0])} of {len(every):,} inputs")


ArrayVerdict: TypeAlias = Verdict[npt.NDArray[Any]]
"""The answer of an exported guard."""
