"""A saved and an exported guard behind one interface."""

import json
import sys
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support.command_line import NETWORK, loader, network
from support.images import noise, write_image
from support.without_torch import BLOCKER, COMMAND, without_torch

import oodles
from oodles.calibration import Threshold
from oodles.cli.decoding import DecodedBatch, decode_ahead
from oodles.cli.guards import ModelOptions, is_exported_guard, load_saved, split_paths
from oodles.cli.inputs import ImageBatch, InputSequence
from oodles.cli.scorers import ExportedScorer, SavedScorer, Scored
from oodles.cli.scoring import NOT_FINITE, Counts, _image_rows, score_batches
from oodles.data.decoding import Prepared
from oodles.data.loaders import normalise
from oodles.data.readers import open_image
from oodles.data.transforms import Transform
from oodles.deploy.results.rows import Row
from oodles.errors import ArgumentError


class Answer(NamedTuple):
    logits: np.ndarray
    label: np.ndarray
    probability: np.ndarray
    score: np.ndarray
    p_value: np.ndarray
    is_id: np.ndarray


class StandIn:
    """An exported guard whose score is the mean brightness, and NaN for the first image of a batch."""

    class_names, detector, identity = ("dark", "light"), "energy", "0" * 64
    threshold = Threshold(0.25, 0.95, 100)

    def __init__(self, transform):
        self.transform = transform

    def judge(self, pixels):
        assert (pixels.dtype, pixels.shape[1:]) == (np.uint8, (3, 8, 8))
        rows = len(pixels)
        score = pixels.reshape(rows, -1).mean(axis=1) / 255
        score[0] = np.nan
        label = (score > 0.5).astype(np.int64)
        return Answer(np.zeros((rows, 2)), label, np.full(rows, 0.75), score, np.full(rows, 0.5), score >= 0.25)


def test_rows_of_an_exported_guard(tmp_path):
    paths = [write_image(tmp_path / f"{number}.png", seed=number, size=(20, 15)) for number in range(4)]
    (tmp_path / "1.png").write_bytes(b"no image")
    scorer = ExportedScorer(tmp_path, StandIn(Transform(8, 8, (0.5,) * 3, (0.25,) * 3)))
    batches = InputSequence(paths).batches(3)
    first, second = score_batches(scorer, batches, scorer.preprocessing(), 2)
    rows = [*first, *second]
    assert [row.path for row in rows] == list(map(str, paths))
    assert [row.error for row in rows[::3]] == [NOT_FINITE, NOT_FINITE]
    assert "not an image" in rows[1].error
    assert rows[2][1:4] == (int(rows[2].score > 0.5), ("dark", "light")[rows[2].label], 0.75)
    assert (rows[2].p_value, rows[2].is_id, rows[2].error) == (0.5, True, None)
    counts = Counts()
    counts.add(rows)
    assert (counts.accepted, counts.rejected, counts.errors, counts.ood_rate) == (1, 0, 3, 0.75)


def test_what_an_exported_guard_does_not_take(tmp_path, fitted):
    with pytest.raises(ArgumentError, match="guards a model whose inputs are not images"):
        ExportedScorer(tmp_path, StandIn(None)).prepare([], True)
    with pytest.raises(ArgumentError, match="is exported and takes images, not the features in"):
        ExportedScorer(tmp_path, StandIn(Transform(8, 8, (0.5,) * 3, (0.25,) * 3))).prepare([fitted / "test"], False)


def test_an_exported_guard_is_recognised_by_its_model(tmp_path, fitted, workspace, refused):
    folder, archive, images = tmp_path / "folder", tmp_path / "guard.zip", tmp_path / "images.zip"
    folder.mkdir()
    for name in ("guard.onnx", "guard.json"):
        (folder / name).touch()
    for path, names in ((archive, ("guard.onnx", "guard.json")), (images, ("photo.jpg",))):
        with zipfile.ZipFile(path, "w") as packed:
            for name in names:
                packed.writestr(name, "")
    (tmp_path / "broken.zip").write_bytes(b"PK")
    assert is_exported_guard(folder)
    assert is_exported_guard(archive)
    assert not any(map(is_exported_guard, (images, tmp_path / "broken.zip", fitted / "guard", tmp_path / "nothing")))
    assert split_paths("score", [archive, images], None) == (archive, [images])
    for option in (["--model", "a:b"], ["--size", "8"]):
        line = refused("score", archive, workspace / "grey", *option)
        assert f"is exported and contains its model and preprocessing; leave out {option[0]}" in line


def test_a_saved_guard_on_images(workspace, fitted, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.syspath_prepend(str(workspace))
    model, checkpoint = NETWORK[1], workspace / NETWORK[3]
    scorer = SavedScorer(load_saved(fitted / "guard"), ModelOptions(model, checkpoint))
    scorer.prepare([], True)
    pixels = noise(5, 3, 8, 8)
    found = scorer.score_images(pixels)
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    verdict, probability = guard.with_probability(normalise(scorer.preprocessing(), torch.from_numpy(pixels)))
    torch.testing.assert_close(probability, verdict.logits.softmax(dim=1).amax(dim=1))
    np.testing.assert_allclose(found.score, verdict.score, rtol=1e-5)
    np.testing.assert_allclose(found.probability, probability, rtol=1e-5)
    np.testing.assert_array_equal(found.label, verdict.label)
    np.testing.assert_array_equal(found.is_id, verdict.is_id)
    np.testing.assert_array_equal(found.p_value, guard.threshold.p_values(found.score))
    assert np.isfinite(found.p_value).all()


def test_the_probability_of_a_multilabel_model_is_a_sigmoid(workspace):
    images = next(iter(loader(workspace / "grey", labels=False)))
    guard = oodles.Guard.fit(
        network(workspace), loader(workspace / "train", labels=False), detector="joint_energy", multilabel=True
    )
    verdict, probability = guard.with_probability(images)
    torch.testing.assert_close(probability, verdict.logits.amax(dim=1).sigmoid())


def test_the_probability_of_a_model_that_returns_probabilities_is_the_one_it_returns(workspace):
    model = torch.nn.Sequential(*network(workspace), torch.nn.Softmax(dim=1)).eval()
    images = next(iter(loader(workspace / "grey", labels=False)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the logits before the softmax are used
        guard = oodles.Guard.fit(model, loader(workspace / "train", labels=False), detector="energy")
        verdict, probability = guard.with_probability(images)
    torch.testing.assert_close(probability, verdict.logits.amax(dim=1), rtol=1e-4, atol=1e-6)


def test_rows_stay_in_order_around_images_that_cannot_be_read():
    class Fixed:
        class_names = ("cat",)

        def score_images(self, pixels):
            rows = len(pixels)
            score = pixels[:, 0, 0, 0].astype(float)
            score[score == 9] = np.inf
            return Scored(np.zeros(rows, int), np.ones(rows), score, np.full(rows, np.nan), score > 1)

    def image(value):
        return Prepared(np.full((3, 2, 2), value, np.uint8), None)

    batch = DecodedBatch(list("abcd"), [Prepared(None, "torn"), image(1), image(9), image(2)])
    assert _image_rows(Fixed(), batch) == [
        Row("a", error="torn"),
        Row("b", 0, "cat", 1.0, 1.0, None, False),
        Row("c", error=NOT_FINITE),
        Row("d", 0, "cat", 1.0, 2.0, None, True),
    ]
    nothing = DecodedBatch(["a"], [Prepared(None, "torn")])
    assert _image_rows(Fixed(), nothing) == [Row("a", error="torn")]


def test_images_are_decoded_ahead_and_what_is_left_is_not_decoded_when_the_consumer_stops(tmp_path):
    path, opened = write_image(tmp_path / "a.png"), []

    def opener(number):
        def run():
            opened.append(number)
            return open_image(path)

        return run

    batches = (ImageBatch([f"{number}"], [opener(number)]) for number in range(100))
    decoded = decode_ahead(batches, Transform(8, 8, (0.5,) * 3, (0.25,) * 3), 1)
    assert next(decoded).names == ["0"]
    decoded.close()
    assert 1 <= len(opened) <= 4


@pytest.mark.slow
def test_a_real_exported_guard(fitted, workspace, oodles_run, refused, tmp_path):
    for place in ("exported", "exported.zip"):
        code, _, err = oodles_run("export", fitted / "guard", *NETWORK, "--out", tmp_path / place)
        assert code == 0, err
    inputs = ["test", "damaged"]
    code, out, err = oodles_run("score", tmp_path / "exported.zip", *inputs, "--json", "--threads", "1")
    assert code == 0, err
    alone = without_torch(Path(sys.executable), prelude=BLOCKER, folder=workspace)
    done = alone(COMMAND, "score", tmp_path / "exported.zip", *inputs, "--json", "--threads", "1")
    assert done.stdout == out, done.stderr
    exported = json.loads(out)
    saved = json.loads(oodles_run("score", fitted / "guard", *inputs, *NETWORK, "--json")[1])
    assert exported["detector"] == saved["detector"]
    assert len(exported["verdicts"]) == 54
    for one, other in zip(exported["verdicts"], saved["verdicts"], strict=True):
        for name in ("path", "label", "class_name", "is_id", "error"):
            assert one[name] == other[name]
        if one["error"]:
            continue
        for name in ("probability", "score"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5)
        # the guard was calibrated on these images, so a rounding error may move a score past its own in the ranking
        assert one["p_value"] == pytest.approx(other["p_value"], abs=1.01 / 51)
    out = tmp_path / "results.csv"
    assert oodles_run("score", tmp_path / "exported", *inputs, "--out", out)[0] == 0
    before = out.read_bytes()
    code, _, err = oodles_run("score", tmp_path / "exported.zip", *inputs, "--out", out, "--resume")
    assert (code, out.read_bytes()) == (0, before), err
    assert "is exported and takes images" in refused("score", tmp_path / "exported", fitted / "test")
    assert "needs a saved guard" in refused("score", tmp_path / "exported", "test", "--ray", "--out", tmp_path / "new")
