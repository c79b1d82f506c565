"""AdaSCALE: percentiles from how far a step moves a row, the step itself, tuning, and the score as in the reference."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import adascale as slow
from support.detector_data import active
from support.networks import one_thread, seeded  # noqa: F401
from support.smooth import small, smooth
from torch import nn

import oodles as ood
from oodles.detectors import AdaSCALE, parse
from oodles.detectors.network_detector import steps_of
from oodles.features import Features, Head
from oodles.functional import energy, prefix_ratio
from oodles.selection.tuning import tune
from oodles.testing import fit_and_tune


def arrays(*tensors):
    return [tensor.detach().double().numpy() for tensor in tensors]


def both_passes(embedding, after, head, detector=None):
    """Features before and after a detector's own step."""
    name = (detector or AdaSCALE()).steps()[0].name
    return Features(embedding, head=head, layers={name: after})


def made_up(rows, width, classes=4, seed=0, *, signed=False, noise=0.3):
    """Embeddings, made-up embeddings after a step, and the head."""
    features = active(rows, width, classes, seed)
    generator = torch.Generator().manual_seed(seed + 77)
    embedding = features.embedding - int(signed)
    return embedding, embedding + noise * torch.randn(rows, width, generator=generator), features.head


# Scores from two passes -----------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", ["embedding", "logits"])
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 230),
    ends=st.sampled_from([(75, 85), (60, 90), (1, 99), (80, 80), (62.5, 95.5)]),
    shift=st.sampled_from([10.0, 0.0, 1.0]),
    noise=st.sampled_from([0.3, 4.0]),  # the larger one makes some of the largest units negative
    signed=st.booleans(),
    biased=st.booleans(),
)
def test_scores_agree_with_the_reference(scaled, seed, width, ends, shift, noise, signed, biased):
    detector = AdaSCALE(low=ends[0], high=ends[1], scaled=scaled, shift=shift)
    embedding, after, head = made_up(16, width, 4, seed, signed=signed, noise=noise)
    test, test_after, _ = made_up(9, width, 4, seed + 1, signed=signed, noise=noise)
    head = head if biased else Head(head.weight)
    held_out = both_passes(embedding, after, head, detector)
    detector.fit(held_out).tune(held_out)
    got = detector.score(both_passes(test, test_after, head, detector))
    bias = np.zeros(4) if head.bias is None else arrays(head.bias)[0]
    want = slow.scores(detector, *arrays(head.weight), bias, arrays(embedding, after), arrays(test, test_after))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def rows_moved_by(moves, width=20):
    """Equal rows whose largest unit is 5 and is moved by the given amounts."""
    embedding = torch.full((len(moves), width), 0.5)
    embedding[:, 3] = 5.0
    after = embedding.clone()
    after[:, 3] += torch.tensor(moves)
    return both_passes(embedding, after, Head(torch.eye(4, width)))


def units_kept(detector, features):
    """The number of units kept, read back from the scores of rows that differ only in their percentile."""
    plain = {}
    for kept in range(1, features.width + 1):
        ratio = prefix_ratio(features.embedding[:1], torch.tensor([kept]))
        plain[kept] = float(energy(ratio.exp() * features.logits[:1]))
    return [min(plain, key=lambda kept: abs(plain[kept] - score)) for score in detector.score(features).tolist()]


def test_the_further_a_row_moves_compared_with_held_out_rows_the_more_units_are_kept():
    detector = AdaSCALE(low=10, high=90)
    held_out = rows_moved_by([1.0, 2.0, 3.0, 4.0])
    detector.fit(held_out).tune(held_out)
    # of 20 units: the percentiles 90, 70, 50, 30 and 10; a row that moves as far as a held-out one counts it
    moves = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 9.0]
    assert units_kept(detector, rows_moved_by(moves)) == [2, 6, 6, 10, 10, 14, 14, 18, 18]


@pytest.mark.parametrize(
    ("width", "low", "high", "below", "rows"),
    [(50, 10, 95, 10, 25), (50, 10, 95, 80, 100), (100, 10, 75, 9, 10), (50, 75, 85, 8, 10), (24, 60, 90, 7, 10)],
)
def test_half_a_unit_is_rounded_to_even_as_in_the_other_shapes(width, low, high, below, rows):
    detector = AdaSCALE(low=low, high=high)
    held_out = rows_moved_by([0.01 * (place + 1) for place in range(rows)], width)
    detector.fit(held_out).tune(held_out)
    want = slow.kept_units(width, low, high, Fraction(below, rows))
    assert units_kept(detector, rows_moved_by([0.01 * below + 0.005], width)) == [want]


@pytest.mark.parametrize(("scaled", "other"), [("embedding", "scale(85)"), ("logits", "lts(85)")])
def test_with_equal_percentiles_it_is_the_shape_that_it_adapts(scaled, other):
    features = both_passes(*made_up(40, 30, signed=True))
    got = fit_and_tune(AdaSCALE(low=85, high=85, scaled=scaled), features).score(features)
    torch.testing.assert_close(got, parse(other).fit(features).score(features))


# With a network -------------------------------------------------------------------------------------


class Wide(nn.Module):
    """A small network with 120 units before its head, so that 1 % of them is one unit and 5 % are six."""

    def __init__(self):
        super().__init__()
        convolved = nn.Conv2d(3, 6, 3, padding=1), nn.Softplus(), nn.Flatten()
        self.embed = nn.Sequential(*convolved, nn.Linear(6 * 5 * 5, 120), nn.ReLU())
        self.fc = nn.Linear(120, 5)

    def forward(self, images):
        return self.fc(self.embed(images))


def wide():
    return seeded(Wide).double().eval()


@pytest.mark.parametrize("share", [0.05, 0.4])
@pytest.mark.parametrize("epsilon", [0.5, 0.01])
def test_the_embedding_after_the_step_agrees_with_autograd(epsilon, share):
    model, images = wide(), small(8, seed=2)
    detector = AdaSCALE(epsilon=epsilon, share=share)
    features = ood.extract(model, [images], steps=steps_of([detector]), progress=False)
    after = features.column(detector.steps()[0].column)
    assert after.shape == (8, 120)
    want = slow.embeddings_after_step(model, images, epsilon, share)
    np.testing.assert_allclose(after, want, rtol=1e-5, atol=1e-6)
    assert float((want - model.embed(images).detach()).abs().max()) > 1e-4, "the step must change something"


@pytest.mark.parametrize("scaled", ["embedding", "logits"])
def test_extracted_tuned_and_scored_it_agrees_with_the_reference(scaled):
    model, (train, held_out, test) = wide(), (small(rows, seed=rows) for rows in (20, 16, 9))
    detector = AdaSCALE(scaled=scaled)
    detector.fit(ood.extract(model, [train], progress=False))
    tune([detector], model, [held_out])
    assert detector.reference_.shape == (16,)
    got = detector.score(ood.extract(model, [test], steps=steps_of([detector]), progress=False))
    passes = [
        arrays(model.embed(images), slow.embeddings_after_step(model, images, 0.5, 0.05)) for images in (held_out, test)
    ]
    want = slow.scores(detector, *arrays(model.fc.weight, model.fc.bias), *passes)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_any_number_of_detectors_cost_one_more_forward_and_backward_pass():
    model = smooth()
    detectors = [AdaSCALE(), AdaSCALE(scaled="logits"), AdaSCALE(low=60, high=90), AdaSCALE(shift=1.0)]
    assert len(steps_of(detectors)) == 1
    ood.extract(model, [small(6)], steps=steps_of(detectors), progress=False)
    ood.extract(plain := smooth(), [small(6)], progress=False)
    assert (model.forwards, model.backwards) == ([*plain.forwards, 6], [6])
    assert len(steps_of([AdaSCALE(), AdaSCALE(epsilon=0.4), AdaSCALE(share=0.1)])) == 3
