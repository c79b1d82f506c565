"""Shapes: each is its formula, percentiles are of the raw ID activations, and settings are checked."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from reference import detectors as slow
from support.detector_data import Pair, assert_matches, train_and_test

from oodles.detectors import ASHB, ASHP, ASHS, LTS, SCALE, VRA, LogitDetector, ReAct, parse
from oodles.errors import ArgumentError
from oodles.features import Features
from oodles.testing import example_features


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("ash_p(70)", lambda rows: slow.ash_p(rows, 70)),
        ("ash_b(70)", lambda rows: slow.ash_b(rows, 70)),
        ("ash_s(70)", lambda rows: slow.ash_s(rows, 70)),
        ("scale(60)", lambda rows: slow.scale(rows, 60)),
        ("lts(80)", lambda rows: slow.lts(rows, 80)),
        ("vra(40, 90)", lambda rows: slow.vra(rows, 40, 90)),
    ],
)
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    assert_matches(text, reference, pair)


@pytest.mark.parametrize("percentile", [0, 1, 50, 85, 90, 95, 99.5, 100])
def test_react_clips_at_numpys_percentile(features: Features, percentile: float) -> None:
    detector = ReAct(percentile=percentile).fit(features)
    want = np.percentile(features.embedding.double().numpy(), percentile)
    assert float(detector.threshold_) == float(np.float32(want))


@pytest.mark.parametrize("percentile", [50, 90])
def test_percentiles_of_each_unit_are_numpys(features: Features, percentile: float) -> None:
    raw = features.embedding.double().numpy()
    react = ReAct(percentile=percentile, per="unit").fit(features)
    np.testing.assert_allclose(react.threshold_, np.percentile(raw, percentile, axis=0), rtol=1e-6)
    vra = VRA(low=20, high=percentile, per="unit").fit(features)
    np.testing.assert_allclose(vra.low_, np.percentile(raw, 20, axis=0), rtol=1e-6)
    np.testing.assert_allclose(vra.high_, np.percentile(raw, percentile, axis=0), rtol=1e-6)


def test_a_chain_of_clips_takes_every_percentile_of_the_raw_activations(features: Features) -> None:
    chain = LogitDetector(shape=[ReAct(percentile=60), ReAct(percentile=80)]).fit(features)
    raw = features.embedding.double().numpy()
    got = [float(shape.threshold_) for shape in chain.shapes]
    assert got == [float(np.float32(np.percentile(raw, percentile))) for percentile in (60, 80)]
    # the lower of the two decides
    assert torch.equal(chain.score(features), ReAct(percentile=60).fit(features).score(features))


def test_scaling_an_embedding_scales_the_logits_without_the_bias() -> None:
    features = example_features()
    head = features.head
    assert head is not None
    assert head.bias is not None
    detector = SCALE(percentile=85).fit(features)
    factor = detector.transform(features.embedding) / features.embedding.clamp(min=1e-9)
    scaled = factor.amax(dim=1, keepdim=True) * (features.logits - head.bias) + head.bias
    torch.testing.assert_close(detector.score(features), torch.logsumexp(scaled, dim=1))


@pytest.mark.parametrize(
    "shape", [ReAct(percentile=60), VRA(), ASHP(), ASHB(), ASHS(), SCALE(), LTS()], ids=lambda shape: shape.name
)
def test_a_transform_keeps_the_form_and_leaves_its_input_alone(shape: LogitDetector) -> None:
    features = example_features()
    shape.fit(features)
    before = features.embedding.clone()
    shaped = shape.transform(features.embedding)  # type: ignore[operator]
    assert shaped.shape == before.shape
    assert torch.equal(features.embedding, before)
    assert torch.equal(shaped, before) == isinstance(shape, LTS), "only LTS acts on the logits instead"


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("percentile", [0.9, 0.999, -1, 100.5, 900, float("nan")])
@pytest.mark.parametrize("kind", [ReAct, ASHP, ASHB, ASHS, SCALE, LTS])
def test_percentiles_outside_their_range(kind: type[LogitDetector], percentile: float) -> None:
    with pytest.raises(ArgumentError, match=r"in percent, 90 and not 0\.9"):
        kind(percentile=percentile)  # type: ignore[call-arg]


def test_react_takes_a_percentile_or_a_threshold() -> None:
    with pytest.raises(ArgumentError, match="percentile=90 or threshold=1"):
        ReAct(percentile=90, threshold=1)
    with pytest.raises(ArgumentError, match="not both"):
        parse("react(90, 1.0)")


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), -float("inf")])
def test_a_threshold_is_finite(threshold: float) -> None:
    with pytest.raises(ArgumentError, match="must be finite"):
        ReAct(threshold=threshold)


@pytest.mark.parametrize("text", ["vra(90, 10)", "vra(50, 50)", "vra(0.6, 0.95)", "vra(-1, 50)", "vra(50, 101)"])
def test_vra_takes_two_percentiles_in_order(text: str) -> None:
    with pytest.raises(ArgumentError, match="must be percentiles, 0 to 100, with low < high"):
        parse(text)


@pytest.mark.parametrize("kind", [ReAct, VRA])
def test_percentiles_are_of_all_activations_or_of_each_unit(kind: type[LogitDetector]) -> None:
    with pytest.raises(ArgumentError, match="per='row' must be 'all'"):
        kind(per="row")  # type: ignore[call-arg]
