"""Which guard, inputs and preprocessing a command uses, and that saved and exported guards are used alike."""

import dataclasses
import json
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command_line import NETWORK, loader, network, paint
from support.images import noise
from support.without_torch import BLOCKER, COMMAND, without_torch

import oodles
from oodles.cli.guards import SHIPPED, open_for, split_paths
from oodles.cli.options import GuardOptions, ImageOptions
from oodles.data.loaders import normalise
from oodles.data.transforms import CIFAR
from oodles.deploy import open_guard
from oodles.deploy.artefact import is_exported
from oodles.deploy.saved import known_transform
from oodles.deploy.sources import InputSequence
from oodles.errors import ArgumentError
from oodles.models import read_card


def test_the_first_path_is_a_guard_if_it_holds_one(fitted, workspace):
    guard, images = fitted / "guard", workspace / "test"
    assert split_paths("score", [guard, images, images], "m:f") == (guard, [images, images])
    assert split_paths("score", [images, images], None) == (None, [images, images])
    with pytest.raises(ArgumentError, match="score needs an input besides the guard"):
        split_paths("score", [guard], None)
    with pytest.raises(ArgumentError, match="is a guard; score takes one guard, before the inputs"):
        split_paths("score", [images, guard], None)
    with pytest.raises(ArgumentError, match="--model needs a guard"):
        split_paths("score", [images], "m:f")


def test_inputs_in_a_row_share_batches_and_are_named_by_their_paths(fitted, workspace, tmp_path):
    paint(tmp_path / "a" / "inner", 2, (200, 0, 0), seed=0)
    paint(tmp_path / "b", 1, (0, 200, 0), seed=0)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(tmp_path / "b" / "000.png", "in/000.png")
    batch = workspace / "data" / "cifar-10-batches-py" / "test_batch"
    single = tmp_path / "b" / "000.png"
    sequence = InputSequence([tmp_path / "a", single, tmp_path / "c.zip", batch, fitted / "test", tmp_path / "b"])
    assert (sequence.stores, sequence.has_images, sequence.total) == ([fitted / "test"], True, None)
    first, *stored, last = sequence.batches(100)
    expected = [tmp_path / "a" / "inner" / "000.png", tmp_path / "a" / "inner" / "001.png", single]
    expected += [tmp_path / "c.zip" / "in" / "000.png", *(f"{batch}[{row}]" for row in range(20))]
    assert first.names == list(map(str, expected))
    assert sum(len(each.names) for each in stored) == 50
    assert last.names == [str(single)]
    colours = []
    for opener in first.openers[:4]:
        with opener() as image:
            colours.append(np.asarray(image).mean(axis=(0, 1)).argmax())
    assert colours == [0, 0, 1, 1]


def test_without_a_guard_it_is_that_of_the_network_that_comes_with_oodles():
    assert open_for(None, GuardOptions(), images=False).class_names == tuple(read_card(SHIPPED)["classes"])


def transform_of(recorded, size, resize, mean, std):
    options = ImageOptions(size=size, resize=resize, mean=mean, std=std)
    return known_transform(Path("guard"), recorded, options.given())


def test_the_recorded_preprocessing_is_used_and_options_must_not_contradict_it():
    recorded = json.loads(json.dumps({"size": 32, "resize": 32, "mean": CIFAR.mean, "std": CIFAR.std}))
    found = partial(transform_of, recorded)
    assert found(None, None, None, None) == found(32, None, None, "0.2023,0.1994,0.2010") == CIFAR
    for other in ((224, None, None, None), (None, None, "0,0,0", None), (None, 40, None, None)):
        with pytest.raises(ArgumentError, match="guard was fitted with other preprocessing"):
            found(*other)


def test_unknown_preprocessing_is_given_as_a_whole_and_never_guessed():
    found = partial(transform_of, None)
    for size, mean, std in [(None, None, None), (64, None, None), (64, "0,0,0", None), (None, "0,0,0", "1,1,1")]:
        assert found(size, None, mean, std) is None
    whole = found(64, 72, "0,0,0", "1,1,1")
    assert (whole.size, whole.resize, whole.mean, whole.std) == (64, 72, (0, 0, 0), (1, 1, 1))
    assert found(64, None, "0,0,0", "1,1,1").resize == 64


def test_an_exported_guard_is_recognised_by_its_files_and_takes_no_model(tmp_path, fitted, workspace, refused):
    archive, images = tmp_path / "guard.zip", tmp_path / "images.zip"
    for path, names in ((archive, ("guard.onnx", "guard.json")), (images, ("photo.jpg",))):
        with zipfile.ZipFile(path, "w") as packed:
            for name in names:
                packed.writestr(name, "")
    (tmp_path / "broken.zip").write_bytes(b"PK")
    assert is_exported(archive)
    assert not any(map(is_exported, (images, tmp_path / "broken.zip", fitted / "guard", tmp_path / "nothing")))
    assert split_paths("score", [archive, images], None) == (archive, [images])
    for option, what in ((["--model", "a:b"], "model"), (["--size", "8"], "preprocessing")):
        line = refused("score", archive, workspace / "grey", *option)
        assert f"is exported and contains its model and preprocessing; leave out the {what}" in line


def test_a_saved_and_an_exported_guard_are_opened_and_used_alike(workspace, fitted, exported):
    saved, by_graph = open_guard(fitted / "guard", network(workspace)), open_guard(exported, threads=1)
    assert saved.transform == by_graph.transform
    assert (saved.detector, saved.threshold) == (by_graph.detector, by_graph.threshold)
    assert saved.identity == by_graph.identity, "results of one are monitored with the other"
    assert saved.version != by_graph.version
    other = by_graph.with_threshold(dataclasses.replace(by_graph.threshold, value=0.5))
    assert other.identity != by_graph.identity
    pixels = noise(5, 3, 8, 8)
    found, other = (guard.judge(guard.batch(pixels)) for guard in (saved, by_graph))
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    verdict = guard(normalise(saved.transform, torch.from_numpy(pixels)))
    torch.testing.assert_close(verdict.probability, verdict.logits.softmax(dim=1).amax(dim=1))
    np.testing.assert_allclose(found.score, verdict.score, rtol=1e-5)
    np.testing.assert_allclose(found.probability, verdict.probability, rtol=1e-5)
    np.testing.assert_allclose(found.p_value, verdict.p_value, atol=0.02)
    np.testing.assert_array_equal(found.label, verdict.label)
    np.testing.assert_array_equal(found.is_id, verdict.is_id)
    np.testing.assert_array_equal(found.p_value, guard.threshold.p_values(found.score))
    for name in ("label", "is_id"):
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name))
    for name in ("logits", "score", "probability", "p_value"):
        np.testing.assert_allclose(getattr(found, name), getattr(other, name), rtol=1e-4, atol=1e-5)
    one, two = (guard.explain(guard.batch(pixels)) for guard in (saved, by_graph))
    assert [each.label for each in one] == [each.label for each in two]
    with pytest.raises(ArgumentError, match="takes images, not the features"):
        by_graph.score_features(fitted / "test")
    assert len(saved.score_features(fitted / "test")) == 50


def test_a_guard_without_its_model_or_preprocessing_takes_no_images(workspace, fitted, tmp_path):
    with pytest.raises(ArgumentError, match="images need --model"):
        open_guard(fitted / "guard").check_images()
    model = network(workspace)
    images = next(iter(loader(workspace / "train", labels=False)))
    oodles.Guard.fit(model, [images], detector="energy").save(tmp_path / "guard")
    with pytest.raises(ArgumentError, match="does not record how images were preprocessed; give --size"):
        open_guard(tmp_path / "guard", lambda: model).check_images()
    given = {"size": 8, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    opened = open_guard(tmp_path / "guard", model, preprocessing=given)
    assert len(opened.judge(opened.batch(noise(3, 3, 8, 8))).score) == 3


def test_the_probability_of_a_model_that_returns_probabilities_is_the_one_it_returns(workspace):
    model = torch.nn.Sequential(*network(workspace), torch.nn.Softmax(dim=1)).eval()
    images = next(iter(loader(workspace / "grey", labels=False)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the logits before the softmax are used
        guard = oodles.Guard.fit(model, loader(workspace / "train", labels=False), detector="energy")
        verdict = guard(images)
    torch.testing.assert_close(verdict.probability, verdict.logits.amax(dim=1), rtol=1e-4, atol=1e-6)


def test_an_exported_guard_is_run_without_torch_and_continues_its_results(
    exported, fitted, workspace, succeeded, json_of, refused, tmp_path
):
    inputs = ["test", "damaged"]
    by_graph = json_of("score", exported, *inputs, "--threads", "1")
    alone = without_torch(Path(sys.executable), prelude=BLOCKER, folder=workspace)
    done = alone(COMMAND, "score", exported, *inputs, "--json", "--threads", "1")
    assert json.loads(done.stdout) == by_graph, done.stderr
    saved = json_of("score", fitted / "guard", *inputs, *NETWORK)
    assert by_graph["detector"] == saved["detector"]
    assert len(by_graph["verdicts"]) == 54
    for one, other in zip(by_graph["verdicts"], saved["verdicts"], strict=True):
        for name in ("path", "label", "class_name", "is_id", "error"):
            assert one[name] == other[name]
        if one["error"]:
            continue
        for name in ("probability", "score"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5)
        # the guard was calibrated on these images, so a rounding error may move a score past its own in the ranking
        assert one["p_value"] == pytest.approx(other["p_value"], abs=1.01 / 51)
    results = tmp_path / "results.csv"
    succeeded("score", exported, *inputs, "--out", results)
    before = results.read_bytes()
    succeeded("score", exported, *inputs, "--out", results, "--resume")
    assert results.read_bytes() == before
    assert "is exported and takes images" in refused("score", exported, fitted / "test")
