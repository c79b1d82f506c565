"""Detectors of every kind in a guard: fitted, tuned, judging as extracted features are scored, saved and loaded."""

import pytest
import torch
from support import networks
from support.networks import batched, one_thread, pictures, seeded, spread  # noqa: F401
from support.snapshots import portrait

from oodles.calibration import calibrate
from oodles.detectors import ODIN
from oodles.detectors.network_detector import layers_of, steps_of
from oodles.errors import DataError, NotFittedError
from oodles.guard import Guard
from oodles.models.deconf import with_head
from oodles.network.extraction import extract

pytestmark = [
    pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning"),
    pytest.mark.filterwarnings("ignore:.*returns probabilities"),
]

TEXTS = [
    *("default", "odin(epsilon=0.01)", "odin(2)", "iodin(epsilon=0.5)", "godin(epsilon=0.02)", "adascale"),
    *("rankfeat('body')", "gram(('body.conv1', 'body'), 3)", "mahalanobis(epsilon=0.01)"),
    *("mahalanobis(epsilon=None)", "mahalanobis(('body.conv1', 'body'))", "mahalanobis(('body',), 0.01)"),
    *("rank_ensemble(('msp', 'odin'), 'fisher')", "rank_ensemble(('msp', 'mahalanobis(epsilon=None)'), 'min')"),
    *("rank_ensemble(('knn(3)', 'adascale'))", "rank_ensemble(('msp', 'knn(3)'), 'fisher', 0)"),
    "rank_ensemble((\"gram(('body',), 2)\", \"rankfeat('body')\", 'energy'))",
]


def guarded(text):
    """A guard of a network that suits the detector, and the options for extracting features from that network."""
    if "godin" in text:
        model, options = seeded(lambda: with_head(networks.Net(), "deconf")).eval(), {"head": False}
    else:
        model, options = spread(seeded(networks.Softmax if text == "odin(2)" else networks.Net)), {}
    guard = Guard.fit(model, batched(240, 40), calibration=batched(60, 20, seed=7), detector=text, **options)
    return guard, {**options, "layers": layers_of([guard.detector]), "steps": steps_of([guard.detector])}


@pytest.mark.parametrize("text", TEXTS)
def test_a_guard_judges_as_extracted_features_are_scored(text, tmp_path):
    guard, options = guarded(text)
    assert guard.detector.fitted
    guard.model.body.conv1.weight.grad = torch.ones_like(guard.model.body.conv1.weight)
    before, images = portrait(guard.model), pictures(9, seed=3)
    verdict = guard(images)
    with pytest.raises(DataError, match="does not accept"):
        guard(torch.zeros(2, 7, 8, 8))
    assert portrait(guard.model) == before
    assert bool((guard.model.body.conv1.weight.grad == 1).all())
    with torch.no_grad():
        assert torch.equal(verdict.logits, guard.model(images)), "bit for bit"
    want = guard.detector.score(extract(guard.model, [images], labels=False, **options))
    torch.testing.assert_close(verdict.score, want, rtol=1e-4, atol=1e-4)
    assert torch.equal(verdict.is_id, verdict.score >= guard.threshold.value)
    assert not verdict.score.requires_grad
    guard.save(tmp_path / "guard")
    loaded = Guard.load(tmp_path / "guard", guard.model)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(loaded(images)[:-1], verdict[:-1], strict=True))
    for value in (torch.nan, torch.inf):
        broken = images.clone()
        broken[2, 1, 3, 3] = value
        judged = guard(broken)
        assert not bool(judged.is_id[2])
        others = [0, 1, 3, 4, 5, 6, 7, 8]
        torch.testing.assert_close(judged.score[others], verdict.score[others], rtol=1e-4, atol=1e-4)


def test_a_guard_works_in_inference_mode():
    (guard, _), (fresh, _) = guarded("odin(epsilon=0.01)"), guarded("odin(epsilon=0.01)")
    want = guard(pictures(5)).score
    with torch.inference_mode():
        assert torch.equal(guard(pictures(5)).score, want)
        assert torch.equal(fresh(pictures(5)).score, want), "also if the head is located in inference mode"
    assert torch.equal(fresh(pictures(5)).score, want)


def test_a_guard_refuses_a_detector_that_is_not_tuned():
    with pytest.raises(NotFittedError, match=r"oodles\.selection\.tune"):
        Guard(seeded(networks.Net), ODIN(), calibrate(torch.arange(40.0)))
