"""Scores alone, as a NumPy file that appears when it is complete."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from oodles.deploy.results.rows import Row
from oodles.records.files import write_with


def write_scores(path: Path, batches: Iterable[Sequence[Row]]) -> None:
    """A vector of float64, NaN for inputs without a score."""
    write_with(path, lambda temporary: _write(temporary, batches))


def _write(path: Path, batches: Iterable[Sequence[Row]]) -> None:
    import numpy as np
    from numpy.lib.format import write_array_header_1_0

    about, rows = {"descr": "<f8", "fortran_order": False}, 0
    with path.open("wb") as file:
        write_array_header_1_0(file, {**about, "shape": (0,)})  # NumPy leaves room for any number
        for batch in batches:
            os.utime(path)  # shows that the temporary file is in use, however rarely something is written to it
            file.write(np.array([math.nan if row.score is None else row.score for row in batch], "<f8").tobytes())
            rows += len(batch)
        file.seek(0)
        write_array_header_1_0(file, {**about, "shape": (rows,)})
