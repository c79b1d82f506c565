import json
import re
import shutil

import pytest
import torch
from support.command_line import NETWORK, network

import oodles
from oodles.deploy.saving import load_guard
from oodles.features import Features
from oodles.testing import example_features


@pytest.fixture
def guard(fitted, tmp_path):
    return shutil.copytree(fitted / "guard", tmp_path / "guard")


def test_the_threshold_is_set_again_and_nothing_else_changes(fitted, guard, succeeded):
    before = json.loads((guard / "guard.json").read_text())
    files = {path.name: path.read_bytes() for path in guard.iterdir() if path.name != "guard.json"}
    out, _ = succeeded("threshold", guard, "--features", fitted / "test", "--id-rate", "0.8")
    detector, threshold, _ = load_guard(guard)
    scores = detector.score(Features.load(fitted / "test"))
    assert threshold == oodles.calibrate(scores, 0.8)
    after = json.loads((guard / "guard.json").read_text())
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"threshold", "seal"}
    assert before.keys() == after.keys()
    assert files == {path.name: path.read_bytes() for path in guard.iterdir() if path.name != "guard.json"}
    old, new, share = out.splitlines()
    assert re.fullmatch(rf"old threshold +{before['threshold']['value']:.7g} \(95 % of ID, set on 50 rows\)", old)
    assert re.fullmatch(rf"new threshold +{threshold.value:.7g} \(80 % of ID, set on 50 rows\)", new)
    accepted = [float((scores >= limit).double().mean()) for limit in (threshold.value, before["threshold"]["value"])]
    assert f"{accepted[0]:.2%} of the 50 rows of {fitted / 'test'}, {accepted[1]:.2%} before" in share


def test_without_a_rate_it_is_the_guards_own_and_the_model_still_belongs_to_it(fitted, guard, workspace, succeeded):
    succeeded("threshold", guard, "--features", fitted / "train", "--id-rate", "0.9")
    succeeded("threshold", guard, "--features", fitted / "test")
    loaded = oodles.Guard.load(guard, network(workspace))
    assert (loaded.threshold.id_rate, loaded.threshold.calibration_size) == (0.9, 50)
    assert loaded.preprocessing is not None
    assert torch.isfinite(loaded(torch.zeros(1, 3, 8, 8)).score).all()


def test_features_of_another_model_and_too_few_rows_leave_the_guard_alone(fitted, guard, refused, succeeded, tmp_path):
    before = (guard / "guard.json").read_bytes()
    succeeded("extract", "test", *NETWORK, "--checkpoint", "two.pt", "--out", tmp_path / "two")
    assert "two has features of another model than" in refused("threshold", guard, "--features", tmp_path / "two")
    line = refused("threshold", guard, "--features", fitted / "test", "--id-rate", "0.99")
    assert "50 ID scores are too few for id_rate=0.99" in line
    example_features(80, 7, 2).save(tmp_path / "unknown")
    assert "was fitted on" in refused("threshold", guard, "--features", tmp_path / "unknown")
    assert (guard / "guard.json").read_bytes() == before
