"""Fitting many detectors in one pass gives what fitting each of them alone gives."""

import copy

import pytest
import torch
from support.experiment import experiment, ood_features
from support.networks import one_thread  # noqa: F401

from oodles.detectors import DICE, MSP, detector_list, fit_together
from oodles.errors import ShapeError
from oodles.features import Features

# one unit of the example features is never active, which detectors that estimate covariances report
pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")


@pytest.fixture(scope="module")
def sets():
    return experiment()


def test_fitting_together_is_fitting_one_by_one(sets):
    together, alone = detector_list(), detector_list()
    fit_together(together, sets["train"])
    for one, other in zip(together, alone, strict=True):
        other.fit(sets["train"])
        for part in (sets["test"], *sets["ood"].values()):
            assert torch.equal(one.score(part), other.score(part)), one.spec
        state, expected = one.state_dict(), other.state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state), one.spec


def test_fitting_together_reads_the_features_once_and_discards_an_earlier_fit(sets, monkeypatch):
    detectors = [detector for detector in detector_list() if "labels" not in detector.learns_from]
    fit_together(detectors, ood_features(sets["train"].head, 9))
    passes = []
    batches = Features.batches

    def counted(self, batch_size=64):
        passes.append(self)
        return batches(self, batch_size)

    monkeypatch.setattr(Features, "batches", counted)
    fit_together(detectors, sets["train"])
    monkeypatch.undo()
    assert [part is sets["train"] for part in passes].count(True) == 1
    # ensembles score the rows they held out, to rank by
    assert all(len(part) < len(sets["train"]) / 2 for part in passes[1:])
    for one in detectors:
        fresh = copy.deepcopy(one).fit(sets["train"])
        torch.testing.assert_close(one.score(sets["test"]), fresh.score(sets["test"]), rtol=1e-5, atol=1e-5)


def test_the_detector_that_cannot_learn_is_named(sets):
    with pytest.raises(ShapeError, match=r"DICE.*learns from the head"):
        fit_together([MSP(), DICE()], Features(sets["train"].embedding))
    fit_together([], sets["train"])
