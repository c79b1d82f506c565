"""The networks whose weights are part of the package, and scoring images with them."""

import json
import os
import socket

import pytest
from support.images import write_image

from oodles.data.loaders import read_pixels
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.models import load, read_card
from oodles.models.shipped import WEIGHTS, shipped_folder
from oodles.training.trainer import accuracy

NAME = "cifar10-small"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    for seed, name in enumerate(("one", "two", "three")):
        write_image(folder / "photos" / f"{name}.png", size=(50, 40), seed=seed)
    write_image(folder / "photo.jpg", size=(48, 64))
    return folder


def test_the_network_matches_its_card(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)  # nothing is downloaded
    model, card = load(NAME), read_card(NAME)
    assert not model.training
    assert sum(weight.numel() for weight in model.parameters()) == card["parameters"]
    assert 1.5e6 < card["parameters"] < 2.5e6
    assert (shipped_folder(NAME) / WEIGHTS).stat().st_size <= 5_000_000
    assert card["test accuracy"] >= 0.89
    assert len(card["classes"]) == 10
    assert "oodles train small" in card["command"]
    assert {"data", "recipe", "seed"} <= card.keys()


@pytest.mark.slow
@pytest.mark.realdata
def test_its_accuracy_is_that_of_the_card(data):
    images = open_images(data / "cifar10-jpeg.zip" / "test")
    some = read_pixels(images.pick(range(0, len(images), 5)), CIFAR)
    assert images.classes == tuple(read_card(NAME)["classes"])
    # 2,000 images: three standard errors are 2.1 points
    assert abs(accuracy(load(NAME), some) - read_card(NAME)["test accuracy"]) < 0.021


def test_a_photo_is_scored_without_a_model(oodles_run):
    code, out, err = oodles_run("score", "photo.jpg")
    assert code == 0, err
    message = " ".join(err.split())
    assert f"no guard given: using {NAME}" in message
    assert "airplane" in message
    assert out.split()[0] in ("ID", "OOD")
    assert out.split()[2] in read_card(NAME)["classes"]
    code, out, _ = oodles_run("score", "photos", "--json")
    verdicts = json.loads(out)["verdicts"]
    assert [os.path.basename(verdict["path"]) for verdict in verdicts] == ["one.png", "three.png", "two.png"]  # noqa: PTH119
    assert {verdict["class_name"] for verdict in verdicts} <= set(read_card(NAME)["classes"])
