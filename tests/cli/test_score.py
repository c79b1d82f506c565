import json
import re
from pathlib import Path

import pytest
import torch
from support.command_line import MODEL, NETWORK, SIZE, loader, network

import oodles
from oodles.cli.score import _preprocessing
from oodles.data.loaders import ImageLoader
from oodles.data.readers import read_folder
from oodles.data.transforms import CIFAR, Transform
from oodles.errors import ArgumentError
from oodles.models import build_model, load_checkpoint
from oodles.network.extraction import extract


def test_images_and_their_features_get_the_same_scores(fitted, oodles_run):
    code, out, _ = oodles_run("score", fitted / "guard", "test", *NETWORK, "--json")
    assert code == 0
    images = json.loads(out)
    code, out, _ = oodles_run("score", fitted / "guard", fitted / "test", "--json")
    assert code == 0
    stored = json.loads(out)
    assert images["detector"] == stored["detector"] == "dice(0.5)+energy"
    assert len(images["verdicts"]) == len(stored["verdicts"]) == 50
    assert [one["input"] for one in images["verdicts"]][24:26] == ["blue/024.png", "red/000.png"]
    for one, other in zip(images["verdicts"], stored["verdicts"], strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], rel=1e-4, abs=1e-5)
        assert one["is_id"] == (one["score"] >= images["threshold"])
    assert sum(one["is_id"] for one in stored["verdicts"]) >= 47, "the guard was calibrated on these"


def test_the_guard_remembers_the_preprocessing(fitted, oodles_run):
    with_options, without = (
        oodles_run("score", fitted / "guard", "test", "--model", MODEL, "--checkpoint", "one.pt", *options, "--json")
        for options in (SIZE, [])
    )
    assert with_options[:2] == without[:2]


def test_a_line_per_image(fitted, oodles_run):
    code, out, err = oodles_run("score", fitted / "guard", "test/red/003.png", *NETWORK)
    assert code == 0
    assert re.fullmatch(r"(ID |OOD)  +-?\d+\.\d+  class [01] +test/red/003\.png\n", out)
    assert "of 1 in-distribution" in err


def test_a_guard_fitted_on_logits_alone_scores_images(workspace, oodles_run, tmp_path):
    features = extract(network(workspace), loader(workspace / "train"), head=False, store=tmp_path / "logits")
    code, _, _ = oodles_run("fit", tmp_path / "logits", "--detector", "msp", "--out", tmp_path / "g")
    assert code == 0
    code, out, err = oodles_run("score", tmp_path / "g", "train", *NETWORK, "--json")
    assert code == 0, err
    scores = [one["score"] for one in json.loads(out)["verdicts"]]
    torch.testing.assert_close(torch.tensor(scores), oodles.MSP().score(features), rtol=1e-4, atol=1e-5)


def test_a_missing_guard(refused):
    assert "guard.json does not exist" in refused("score", "nowhere", "train", notices=False)


def test_images_without_a_model_and_a_guard_of_another_model(fitted, refused):
    assert "--model and --checkpoint are needed" in refused("score", fitted / "guard", "test")
    assert "was fitted on another model" in refused("score", fitted / "guard", "test", "--model", MODEL, *SIZE)


def test_other_preprocessing_than_that_of_the_guard(fitted, refused):
    line = refused("score", fitted / "guard", "test", *NETWORK, "--size", "7")
    assert "was fitted with other preprocessing" in line


def test_the_recorded_preprocessing_is_used_and_options_must_not_contradict_it():
    recorded = json.loads(json.dumps({"size": 32, "resize": 32, "mean": CIFAR.mean, "std": CIFAR.std}))
    guard = Path("guard")
    assert _preprocessing(recorded, None, None, None, None, guard) == CIFAR
    assert _preprocessing(recorded, 32, None, None, "0.2023,0.1994,0.2010", guard) == CIFAR
    with pytest.raises(ArgumentError, match="guard was fitted with other preprocessing"):
        _preprocessing(recorded, 224, None, None, None, guard)
    with pytest.raises(ArgumentError, match="guard was fitted with other preprocessing"):
        _preprocessing(recorded, None, None, "0,0,0", None, guard)


@pytest.mark.parametrize("given", [(None, None, None), (64, None, None), (64, "0,0,0", None), (None, "0,0,0", "1,1,1")])
def test_unknown_preprocessing_is_never_guessed(given):
    size, mean, std = given
    with pytest.raises(ArgumentError, match="does not record how images were preprocessed; give --size, --mean and"):
        _preprocessing(None, size, None, mean, std, Path("guard"))


def test_preprocessing_that_is_not_recorded_can_be_given():
    found = _preprocessing(None, 64, 72, "0,0,0", "1,1,1", Path("guard"))
    assert (found.size, found.resize, found.mean, found.std) == (64, 72, (0, 0, 0), (1, 1, 1))


def test_a_guard_saved_from_python_is_not_given_imagenet_statistics(workspace, oodles_run, refused, tmp_path):
    """Without a record, images used to be resized to 224 pixels and normalised as for ImageNet, without a word."""
    model = build_model(MODEL)
    load_checkpoint(model, workspace / "one.pt")
    images = ImageLoader(read_folder(workspace / "train"), Transform(8, 8, (0.5,) * 3, (0.25,) * 3))
    known = oodles.Guard.fit(model, images, detector="energy")
    assert known.preprocessing == images.transform.as_record()
    known.save(tmp_path / "known")
    options = ("--model", MODEL, "--checkpoint", workspace / "one.pt")
    code, out, err = oodles_run("score", tmp_path / "known", "train", *options, "--json")
    assert code == 0, err
    accepted = [verdict["is_id"] for verdict in json.loads(out)["verdicts"]]
    assert sum(accepted) >= 0.9 * len(accepted)
    unknown = oodles.Guard(model, known.detector, known.threshold)
    unknown.save(tmp_path / "unknown")
    line = refused("score", tmp_path / "unknown", "train", *options)
    assert "does not record how images were preprocessed" in line
