"""Scores of rows that are huge, tiny or not finite, and the memory that scoring takes."""

import copy
from functools import cache

import pytest
import torch
from support.memory import peak_bytes
from torch import nn

from oodles.calibration import Threshold
from oodles.detectors import Detector, detector_list, parse
from oodles.features import Features
from oodles.guard import Guard
from oodles.testing import example_features

pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")

SPECS = [detector.spec for detector in detector_list()]


@cache
def fitted(spec: str) -> Detector:
    return parse(spec).fit(example_features())


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_a_row_that_overflows_in_the_cast_gets_nan(spec):
    plain = example_features()
    detector = fitted(spec)
    rows = {"embedding": plain.embedding[:6].double(), "logits": plain.logits[:6].double()}
    for name in rows:
        rows[name][2] = 1e60 * (1 + rows[name][2].abs())
    scores = detector.score(Features.unvalidated(rows))
    precise = not any(buffer.is_floating_point() for buffer in detector.buffers())  # it then scores in float64
    assert precise or scores.isnan().nonzero().flatten().tolist() == [2]
    assert scores.dtype == (torch.float64 if precise else torch.float32)


@pytest.mark.parametrize("spec", ["lts", "gradnorm", "grad_uncertainty", "she", "dice(0.9)"])
def test_scores_that_overflow_are_nan(spec):
    rows, logits = torch.ones(4, 24), torch.zeros(4, 5)
    logits[:, 3] = 9.0
    rows *= torch.tensor([[1.0], [1e20], [1e37], [3e38]])
    with torch.no_grad():
        raw = fitted(spec)(rows, logits)
    scores = fitted(spec).score(Features.unvalidated({"embedding": rows, "logits": logits}))
    assert raw.isinf().any(), "the test has a row that overflows"
    assert torch.equal(scores.isnan(), ~raw.isfinite())
    assert scores[0] == raw[0]


def test_an_overflowing_member_does_not_count_as_confident():
    detector = fitted("rank_ensemble(detectors=('grad_uncertainty', 'knn'))")
    plain = example_features()
    rows = plain.embedding[:3] * torch.tensor([[1.0], [1e25], [1.0]])
    scores = detector.score(Features.unvalidated({"embedding": rows, "logits": plain.logits[:3]}))
    assert scores.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("spec", ["react(90)", "vra", "msp", "lts", "knn", "default", "grad_uncertainty"])
@pytest.mark.parametrize("value", [1e60, 1e25])
def test_a_guard_of_a_double_network_checks_what_its_detector_sees(spec, value):
    plain = example_features()
    last = nn.Linear(24, 5)
    last.load_state_dict(plain.head.tensors())
    model = nn.Sequential(nn.Flatten(), last).double()
    guard = Guard(model, copy.deepcopy(fitted(spec)), Threshold(value=-1e30, id_rate=0.95, calibration_size=99))
    rows = plain.embedding[:5].double()
    rows[3] *= value
    verdict = guard(rows)
    assert not verdict.score.isinf().any()
    assert not verdict.is_id[~verdict.score.isfinite()].any()
    assert verdict.is_id.tolist()[:3] == [True] * 3
    if value == 1e60:
        assert verdict.score.isnan().tolist() == [False, False, False, True, False]


# Memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["knn(k=200)", "weiper(repeats=12)", "rank_ensemble(('energy', 'knn'))", "dice(0.9)"])
def test_scoring_takes_the_memory_of_some_rows_at_once(spec):
    rows = example_features(2000, 8, 10)
    detector = parse(spec).fit(rows)
    detector.rows_at_once = 100
    few, all_rows = (peak_bytes(lambda part=part: detector.score(part)) for part in (rows[:100], rows))
    assert all_rows <= 1.2 * few + 16 * len(rows), "twenty times as many rows"


def test_an_ensemble_scores_as_few_rows_at_once_as_its_members():
    assert parse("rank_ensemble(('energy', 'weiper', 'knn'))").rows_at_once == parse("weiper").rows_at_once < 1000
