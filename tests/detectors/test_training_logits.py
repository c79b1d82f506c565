"""KL matching, temperature scaling and OpenMax: their formulas, and fits with little to learn from."""

import numpy as np
import pytest
import torch
from reference import detectors as slow
from support.detector_data import active, assert_matches

from oodles.detectors import parse
from oodles.errors import FitWarning
from oodles.features import Features, Head
from oodles.testing import example_features

# OpenMax ----------------------------------------------------------------------------------------


def bounded(text: str, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of these logits, and what they are if everything is taken from the top classes."""
    detector = parse(text).fit(example_features(300, 24, logits.shape[1]))
    assert torch.isfinite(detector.place_).all(), "every class has a tail"
    top = logits.topk(min(detector.top, logits.shape[1]), dim=1)
    weight = torch.arange(top.values.shape[1], 0, -1) / top.values.shape[1]
    remaining = logits.scatter(1, top.indices, top.values * (1 - weight))
    all_taken = torch.logsumexp(remaining, dim=1) - (top.values * weight).sum(dim=1)
    scores = detector.score(Features(torch.zeros(len(logits), 24), logits=logits))
    return scores, all_taken


def test_openmax_takes_from_the_logits_as_they_are() -> None:
    """Far from all classes every top class is improbable; the logits are not shifted first, also if negative."""
    logits = torch.tensor([[900.0, 300.0, -400.0, 100.0], [-900.0, -300.0, -400.0, -100.0]])
    scores, all_taken = bounded("openmax(tail=8, top=3)", logits)
    torch.testing.assert_close(scores, all_taken)
    shifted, want = bounded("openmax(tail=8, top=3)", logits - logits.amin(dim=1, keepdim=True))
    torch.testing.assert_close(shifted, want)
    assert (scores - shifted).abs().min() > 100


@pytest.mark.parametrize("classes", [1, 2])
def test_openmax_with_fewer_classes_than_it_looks_at(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(60, classes, generator=generator).abs()
    head = Head(torch.eye(classes))
    features = Features(logits, logits=logits, labels=logits.argmax(dim=1), head=head)
    assert_matches("openmax", lambda rows: slow.openmax(rows, 20, 10), (features, features))


def test_a_class_without_rows_keeps_its_logit_in_openmax() -> None:
    features = example_features(90, 10, 3)
    without = features[features.column("labels") != 2]
    detector = parse("openmax(top=1)").fit(without)
    far = torch.tensor([[0.0, 0.0, 500.0], [500.0, 0.0, 0.0]])
    scores = detector.score(Features(torch.zeros(2, 10), logits=far))
    np.testing.assert_allclose(scores, [500, np.log(3) - 500], rtol=1e-4)


def test_openmax_with_equal_rows_has_no_tail_to_fit() -> None:
    row = torch.tensor([[3.0, 1.0, 0.0]])
    features = Features(torch.zeros(9, 2), logits=row.expand(9, 3), labels=torch.zeros(9, dtype=torch.long))
    torch.testing.assert_close(parse("openmax").fit(features).score(features), torch.logsumexp(row, 1).expand(9))


@pytest.mark.parametrize("classes", [16, 17, 40])
def test_openmax_of_few_and_of_many_classes_matches_the_reference(classes: int) -> None:
    """From 17 classes on, the distance to the top class alone is computed."""
    train, test = active(400, 12, classes, seed=0), active(9, 12, classes, seed=1)
    pair = train, Features(test.embedding, head=train.head)
    assert_matches("openmax(tail=8, top=1)", lambda rows: slow.openmax(rows, 8, 1), pair)


def test_openmax_without_a_correctly_classified_row() -> None:
    features = example_features(20)
    wrong = (features.logits.argmax(dim=1) + 1) % features.classes
    with pytest.warns(FitWarning, match="no training row is classified correctly"):
        detector = parse("openmax").fit(Features(features.embedding, labels=wrong, head=features.head))
    assert torch.isfinite(detector.score(features)).all()
