"""Every detector exported with a network: the same scores and decisions, also far from the training data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.exports import CASES, guard_of, inputs, make_network
from support.networks import one_thread, pictures  # noqa: F401

from oodles.errors import ArgumentError

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


@pytest.fixture(scope="module")
def network():
    return make_network()


@pytest.mark.slow
@pytest.mark.parametrize("spec", [case.spec for case in CASES if not case.steps])
@pytest.mark.filterwarnings("ignore::oodles.FitWarning")
def test_the_exported_guard_gives_the_guards_own_answers(network, spec, tmp_path):
    guard = guard_of(network, spec)
    exported = guard.export(tmp_path / "guard.zip", inputs=inputs())
    # usual inputs, stronger and weaker ones, and one that is no number
    images = torch.cat([factor * pictures(9, seed=5) for factor in (1, 0.01, 5, 40)])
    images[4] = torch.nan
    ours, theirs = guard(images), exported(images.numpy())
    score = ours.score.numpy()
    finite = np.isfinite(score)
    assert np.array_equal(finite, np.isfinite(theirs.score))
    assert not theirs.is_id[4]
    size = np.abs(score[finite]).max()
    assert np.abs(score - theirs.score)[finite].max() <= 1e-4 * max(size, 1e-2)
    clear = finite & (np.abs(score - guard.threshold.value) > 1e-5 * size)
    assert np.array_equal(ours.is_id.numpy()[clear], theirs.is_id[clear])
    assert np.array_equal(ours.label.numpy()[finite], theirs.label[finite])
    assert np.allclose(theirs.p_value[clear], guard.threshold.p_values(score)[clear], atol=0.02)
    assert exported.detector == guard.detector.spec


@pytest.mark.parametrize("spec", [case.spec for case in CASES if case.steps])
def test_a_detector_that_moves_its_inputs_is_refused_by_name(network, spec, tmp_path):
    guard = guard_of(network, spec)
    with pytest.raises(ArgumentError, match="moves its inputs along a gradient"):
        guard.export(tmp_path / "guard.zip", inputs=inputs())
    assert not (tmp_path / "guard").exists()


def test_the_page_lists_every_detector():
    listed = [
        line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines() if line.startswith("| `")
    ]
    assert {f"`{case.spec}`" for case in CASES} <= {*listed}
