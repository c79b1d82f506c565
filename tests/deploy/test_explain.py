"""``ExportedGuard.explain`` next to ``Guard.explain`` and thresholds that change while a guard runs."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from support import exported_guards as made
from support.exports import guard_of, inputs, make_network
from support.networks import one_thread, pictures  # noqa: F401

from oodles.calibration import Threshold
from oodles.deploy.artefact import replace_threshold
from oodles.deploy.exported import NETWORK, OUTPUTS, ExportedGuard
from oodles.errors import ArgumentError, FileError

# a sparsifier, one after shapes, one with a logit factor, an ensemble with such a member, and neither
SPECS = ["dice(0.5)", "react_scale_dice", "lts(80)+dice(0.5)+energy", "default", "knn"]


def same(ours, theirs):
    """Compare the explanations of one input."""
    assert (theirs.label, theirs.class_name, theirs.is_id) == (ours.label, ours.class_name, ours.is_id)
    assert (theirs.threshold, theirs.id_rate, theirs.reduction) == (ours.threshold, ours.id_rate, ours.reduction)
    assert theirs.score == pytest.approx(ours.score, rel=1e-4, abs=1e-4, nan_ok=True)
    assert [each.spec for each in theirs.findings] == [each.spec for each in ours.findings]
    for mine, other in zip(ours.findings, theirs.findings, strict=True):
        assert other.score == pytest.approx(mine.score, rel=1e-4, abs=1e-4)
        assert (other.id_lowest, other.id_median) == (mine.id_lowest, mine.id_median)
        assert other.p_value == (None if mine.p_value is None else pytest.approx(mine.p_value, abs=2e-3))
        assert other.neighbours == ()
        assert (other.contributions is None) == (mine.contributions is None)
        if mine.contributions is not None:
            for name in ("kept", "dropped", "bias", "factor", "logit", "dense_logit"):
                wanted, found = getattr(mine.contributions, name), getattr(other.contributions, name)
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
            assert other.contributions.as_record().keys() == mine.contributions.as_record().keys()


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.filterwarnings("ignore::oodles.FitWarning")
def test_the_exported_guard_explains_as_the_guard_does(spec, tmp_path):
    guard = guard_of(make_network(), spec)
    exported = guard.export(tmp_path / "guard.zip", inputs=inputs())
    images = torch.cat([factor * pictures(35, seed=5) for factor in (1, 3)])  # more than one batch
    images[4] = torch.nan
    ours, theirs = guard.explain(images), exported.explain(images.numpy())
    assert {each.is_id for each in ours} == {True, False}
    for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert math.isnan(other.score) == (row == 4)
        same(mine, other)
    assert theirs[4].findings == ()
    members = guard.detector.scoring_members() if spec == "default" else []
    assert exported.members == tuple(member.spec for member in members)
    sparse = any(finding.contributions is not None for finding in theirs[0].findings)
    assert sparse == (spec != "knn")
    verdict, plain = exported.judge(exported.arrays(images.numpy()), explain=True), exported(images.numpy())
    assert (len(verdict.explanations), plain.explanations) == (len(images), ())
    for name in OUTPUTS:
        np.testing.assert_array_equal(getattr(verdict, name), getattr(plain, name))


@pytest.fixture
def images_guard(originals, tmp_path):
    return ExportedGuard.open(made.write(originals["images"], tmp_path / "guard.zip"))


def test_an_image_is_explained_whichever_way_it_comes(images_guard, tmp_path):
    picture = Image.fromarray(made.inputs("images")[0])
    picture.save(tmp_path / "photo.png")
    batch = images_guard.batch(images_guard.transform(picture)[None])
    verdict = images_guard.judge(batch, explain=True)
    (wanted,) = verdict.explanations
    assert verdict.score == images_guard.judge(batch).score == wanted.score
    for given in (tmp_path / "photo.png", [str(tmp_path / "photo.png")], picture, np.asarray(picture)[None]):
        (found,) = images_guard.explain(given)
        same(wanted, found)
        assert str(found) == str(wanted)
    assert wanted.class_name in ("a", "b", "c")
    with pytest.raises(ArgumentError, match="is called with one argument"):
        images_guard.explain(1, 2)


def test_normal_scoring_asks_for_the_verdict_alone(images_guard, monkeypatch):
    asked = []
    run = images_guard._session.run

    class Watched:
        def run(self, names, *rest):
            asked.append(tuple(names))
            return run(names, *rest)

    monkeypatch.setattr(images_guard, "_session", Watched())
    images_guard(made.inputs("images"))
    images_guard.explain(made.inputs("images"))
    assert asked == [NETWORK, (*NETWORK, "member_score", "kept", "dropped", "bias", "factor")]


def test_other_explanations_than_the_guards_refuse_the_export(tmp_path, monkeypatch):
    guard = guard_of(make_network(), "dice(0.5)")
    explain = guard.explain

    def otherwise(*given):
        found = explain(*given)
        found[3].findings[0].contributions.dropped[2] += 1.0
        return found

    monkeypatch.setattr(guard, "explain", otherwise)
    with pytest.raises(ArgumentError, match=r"does not explain as the guard does.* dropped of"):
        guard.export(tmp_path / "guard.zip", inputs=inputs())
    assert not list(tmp_path.iterdir())


# Thresholds ---------------------------------------------------------------------------------------


def test_a_running_guard_takes_another_threshold(originals, tmp_path):
    path = made.write(originals["images"], tmp_path / "guard.zip")
    guard, images = ExportedGuard.open(path), made.inputs("images")
    before = guard(images)
    limit = Threshold(float(np.median(before.score)), 0.5, 24)
    other = guard.with_threshold(limit)
    assert other._session is guard._session
    assert (other.threshold, guard.threshold.value) == (limit, guard.record["threshold"]["value"])
    np.testing.assert_array_equal(other(images).is_id, before.score >= limit.value)
    np.testing.assert_array_equal(other(images).p_value, before.p_value)
    np.testing.assert_array_equal(guard(images).is_id, before.is_id)
    assert {each.threshold for each in other.explain(images)} == {limit.value}
    replace_threshold(path, limit.as_record())
    assert other.version == ExportedGuard.open(path).version != guard.version


def test_a_threshold_that_no_guard_can_have_is_refused(images_guard):
    for limit, said in ((Threshold(1e300, 0.9, 10), "float32"), (Threshold(0.0, 95, 10), "id_rate")):
        with pytest.raises(ArgumentError, match=said):
            images_guard.with_threshold(limit)
    before = images_guard.path.read_bytes()
    with pytest.raises(FileError, match="id_rate"):
        replace_threshold(images_guard.path, {"value": 0.0, "id_rate": 95, "calibration_size": 10})
    assert images_guard.path.read_bytes() == before
