"""Scores of rows that are huge, tiny or not finite, and the memory that scoring takes."""

import copy

import pytest
import torch
from torch import nn

from oodles.calibration import Threshold
from oodles.detectors import Detector, base, detector_list, parse
from oodles.features import Features
from oodles.guard import Guard
from oodles.testing import example_features, peak_bytes

pytestmark = pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")

SPECS = [detector.spec for detector in detector_list()]
FITTED: dict[str, Detector] = {}


def fitted(spec: str) -> Detector:
    if spec not in FITTED:
        FITTED[spec] = parse(spec).fit(example_features())
    return FITTED[spec]


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


@pytest.mark.parametrize("shape", [(8, 10), (100, 50)], ids=str)
@pytest.mark.parametrize("spec", [*SPECS, "knn(k=200)"])
def test_scoring_takes_no_more_memory_than_it_may(spec, shape, monkeypatch):
    if spec == "weiper":
        spec = "weiper(repeats=12)"
    rows = example_features(220, *shape)
    detector = parse(spec).fit(rows)
    budget = 1 << 19
    monkeypatch.setattr(base, "SCORING_BYTES", budget)
    at_once = base._rows_at_once(detector, rows, 4)
    features = rows[torch.arange(2 * at_once + 9) % len(rows)]
    peak = peak_bytes(lambda: detector.score(features))
    constant = 4 * max(tensor.numel() for tensor in [*detector.buffers(), torch.zeros(1)])  # of some product of it
    assert peak <= budget + 8 * len(features) + 2 * constant


def test_narrow_rows_compared_with_many_are_scored_in_smaller_batches():
    rows = example_features(3000, 8, 10)
    detector = parse("knn").fit(rows)
    assert 256e6 > 4 * 2048 * base._rows_at_once(detector, rows, 4) > 32e6
    assert base._rows_at_once(parse("energy").fit(rows), rows, 4) > 100_000
