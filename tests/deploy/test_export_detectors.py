"""Every detector exported with a network: the same scores and decisions, also far from the training data."""

import numpy as np
import pytest
import torch
from support.networks import Net, batched, one_thread, pictures, seeded, spread  # noqa: F401

import oodles as ood
from oodles.detectors import parse
from oodles.detectors.network_detector import steps_of
from oodles.errors import ArgumentError
from oodles.guard import Guard
from oodles.network.extraction import extract
from oodles.selection.tuning import tune

TRAIN, HELD_OUT = batched(160, 40, seed=1), batched(120, 40, seed=2)
# what looks into the network or takes settings, besides the detectors of the list
OTHERS = [
    "rankfeat('body')",
    "gram(['body.conv1', 'body.conv2'])",
    "mahalanobis(layers=['body.bn1'])",
    "rank_ensemble(['energy', 'knn'])",
]
GRADIENTS = ["odin(epsilon=0.01)", "iodin(epsilon=0.01)", "mahalanobis(epsilon=0.01)", "adascale"]


@pytest.fixture(scope="module")
def model():
    return spread(seeded(Net))


def guard_of(model, spec):
    return Guard.fit(model, TRAIN, calibration=HELD_OUT, detector=spec, id_rate=0.9)


@pytest.mark.parametrize("spec", [*(each.spec for each in ood.detector_list()), *OTHERS])
@pytest.mark.filterwarnings("ignore::oodles.FitWarning")
def test_the_exported_guard_gives_the_guards_own_answers(model, spec, tmp_path):
    guard = guard_of(model, spec)
    exported = guard.export(tmp_path / "guard")
    # usual inputs, stronger and weaker ones, and one that is no number
    images = torch.cat([factor * pictures(9, seed=5) for factor in (1, 0.01, 5, 40)])
    images[4] = torch.nan
    ours, theirs = guard(images), exported(images.numpy())
    finite = torch.isfinite(ours.score).numpy()
    assert np.array_equal(finite, np.isfinite(theirs.score))
    assert not theirs.is_id[4]
    size = np.abs(ours.score.numpy()[finite]).max()
    assert np.abs(ours.score.numpy() - theirs.score)[finite].max() <= 1e-4 * max(size, 1e-2)
    near = np.abs(ours.score.numpy() - guard.threshold.value) <= 1e-5 * size
    assert np.array_equal(ours.is_id.numpy()[~near], theirs.is_id[~near])
    assert np.array_equal(ours.label.numpy()[finite], theirs.label[finite])
    assert np.allclose(theirs.p_value[finite & ~near], guard.threshold.p_values(ours.score)[finite & ~near], atol=0.02)
    assert exported.detector == guard.detector.spec


@pytest.mark.parametrize("spec", GRADIENTS)
def test_a_detector_that_moves_its_inputs_is_refused_by_name(model, spec, tmp_path):
    detector = parse(spec)
    train = extract(model, TRAIN, layers=getattr(detector, "layers", ()))
    detector.fit(train)
    tune([detector], model, HELD_OUT)
    held_out = extract(model, HELD_OUT, layers=getattr(detector, "layers", ()), steps=steps_of([detector]))
    guard = Guard(model, detector, ood.calibrate(detector.score(held_out)))
    with pytest.raises(
        ArgumentError, match=r"moves its inputs along a gradient of the network .* without input steps$"
    ):
        guard.export(tmp_path / "guard", inputs=HELD_OUT)
    assert not (tmp_path / "guard").exists()
