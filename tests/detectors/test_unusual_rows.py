"""WeiPer and AdaSCALE on rows that are degenerate, equal, broken or of another width, and in float64."""

import copy

import numpy as np
import pytest
import torch

from oodles.detectors import Detector, parse
from oodles.detectors.base import extra_columns
from oodles.features import Features, Head
from oodles.testing import example_features, fit_and_tune, with_passes

TEXTS = ("weiper(repeats=3)", "adascale", "adascale(scaled='logits')")


def degenerate():
    """Training rows by what is unusual about them."""
    plain = example_features(40, 24, 4)
    head = plain.head
    return {
        "every row five times": Features(plain.embedding[:8].repeat(5, 1), head=head),
        "one row forty times": Features(plain.embedding[:1].repeat(40, 1), head=head),
        "one row": plain[:1],
        "only zeros": Features(torch.zeros(5, 24), head=head),
        "one value everywhere": Features(torch.full((6, 24), 1e8), head=Head(torch.ones(4, 24))),
        "tiny activations": Features(plain.embedding * 1e-20, head=head),
        "no bias": Features(plain.embedding, head=Head(head.weight)),
        "nothing positive": Features(-plain.embedding - 0.1, head=head),
        "one class": Features(plain.embedding, head=Head(head.weight[:1], torch.zeros(1))),
        "one unit": Features(plain.embedding[:, :1], head=Head(head.weight[:, :1])),
    }


@pytest.mark.parametrize("case", degenerate())
@pytest.mark.parametrize("text", [*TEXTS, "weiper(repeats=1, bins=1000)"])
def test_degenerate_rows_have_finite_and_reproducible_scores(text, case):
    detector = parse(text)
    features = with_passes(detector, degenerate()[case])
    scores = fit_and_tune(detector, features).score(features)
    assert scores.shape == (len(features),)
    assert torch.isfinite(scores).all()
    wide_scores = copy.deepcopy(detector).double().score(features.to(dtype=torch.float64))
    np.testing.assert_allclose(scores, wide_scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(fit_and_tune(parse(text), features).score(features), scores)


def with_nan(detector: Detector, features: Features):
    """The inputs of ``forward``, once for each way to replace a value of row 1 that the method uses by NaN."""
    columns = [features.column(name) for name in ("embedding", "logits", *extra_columns(detector))]
    largest, smallest = int(features.embedding[1].argmax()), int(features.embedding[1].argmin())
    places = [(0, largest), (0, smallest)] if "embedding" in detector.scores_from else []
    places += [(1, 2)] if "logits" in detector.scores_from else []
    places += [(2 + number, largest) for number in range(len(extra_columns(detector)))]
    for column, unit in places:
        altered = [each.clone() for each in columns]
        altered[column][1, unit] = torch.nan
        yield altered
    whole = [each.clone() for each in columns]
    for each in whole:
        each[1] = torch.nan
    yield whole


@pytest.mark.parametrize(
    "text",
    [
        "weiper(repeats=3)",
        "weiper(repeats=3, confidence=0, weight=0)",
        "adascale",
        "adascale(60, 90, scaled='logits')",
    ],
)
def test_a_row_with_nan_gets_nan_and_does_not_affect_others(text):
    detector = parse(text)
    features = with_passes(detector, example_features(12))
    scores = fit_and_tune(detector, features).score(features)
    for columns in with_nan(detector, features):
        with torch.no_grad():
            got = detector(*columns)
        assert torch.isnan(got[1])
        others = [place for place in range(12) if place != 1]
        torch.testing.assert_close(got[others], scores[others], rtol=1e-5, atol=1e-6)
