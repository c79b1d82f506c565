"""``benchmark``: one row for each detector and OOD set."""

import numpy as np
import pytest
from support.experiment import experiment

from oodles.bench.run import benchmark
from oodles.detectors import DICE, MSP
from oodles.errors import DataError


def test_one_row_per_detector_and_set_under_the_given_names():
    sets = experiment()
    rows = benchmark({"mine": DICE(p=0.5), "msp": MSP()}, **sets, id_set="here", run="r2", bootstrap=20)
    assert [(row.detector, row.ood_set) for row in rows] == [
        ("mine", "near"),
        ("mine", "far"),
        ("msp", "near"),
        ("msp", "far"),
    ]
    assert {(row.id_set, row.run, row.n_id) for row in rows} == {("here", "r2", 120)}
    assert [row.n_ood for row in rows[:2]] == [110, 70]
    for row in rows:
        low, high = row.intervals["fpr95"]
        assert low <= high
    by_spec = benchmark([DICE(p=0.5)], **sets)
    assert [row.detector for row in by_spec] == ["dice(0.5)+energy"] * 2
    assert np.allclose([row.auroc for row in by_spec], [row.auroc for row in rows[:2]])
    with pytest.raises(DataError, match="no OOD set"):
        benchmark([MSP()], train=sets["train"], test=sets["test"], ood={})
