"""Which guard, which inputs and which preprocessing a command uses."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.command_line import paint

from oodles.cli.checks import image_options
from oodles.cli.guards import SHIPPED, load_saved, open_inputs, split_paths
from oodles.data.transforms import CIFAR
from oodles.errors import ArgumentError
from oodles.models import read_card


@pytest.fixture
def saved(fitted):
    return load_saved(fitted / "guard")


def test_the_first_path_is_a_guard_if_it_holds_one(fitted, workspace):
    guard, images = fitted / "guard", workspace / "test"
    assert split_paths("score", [guard, images, images], "m:f") == (guard, [images, images])
    assert split_paths("score", [images, images], None) == (None, [images, images])
    with pytest.raises(ArgumentError, match="score needs an input besides the guard"):
        split_paths("score", [guard], None)
    with pytest.raises(ArgumentError, match="is a guard; score takes one guard, before the inputs"):
        split_paths("score", [images, guard], None)
    with pytest.raises(ArgumentError, match=r"--model needs a guard, and .* holds no guard.json"):
        split_paths("score", [images], "m:f")


def test_inputs_in_a_row_are_one_set_named_by_their_paths(fitted, workspace, tmp_path):
    paint(tmp_path / "a" / "inner", 2, (200, 0, 0), seed=0)
    paint(tmp_path / "b", 1, (0, 200, 0), seed=0)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(tmp_path / "b" / "000.png", "in/000.png")
    batch = workspace / "data" / "cifar-10-batches-py" / "test_batch"
    single = tmp_path / "b" / "000.png"
    paths = [tmp_path / "a", single, tmp_path / "c.zip", batch, fitted / "test", tmp_path / "b"]
    first, stored, last = open_inputs(paths)
    assert stored == fitted / "test"
    expected = [tmp_path / "a" / "inner" / "000.png", tmp_path / "a" / "inner" / "001.png", single]
    expected += [tmp_path / "c.zip" / "in" / "000.png", *(f"{batch}[{row}]" for row in range(20))]
    assert list(first.names) == list(map(str, expected))
    assert list(last.names) == [str(single)]
    pixels = [np.asarray(first.read(row)) for row in range(len(first))]
    assert (pixels[2] == pixels[3]).all()
    assert [each.shape[0] for each in pixels] == [8] * 4 + [32] * 20
    assert pixels[0].mean(axis=(0, 1)).argmax() == pixels[1].mean(axis=(0, 1)).argmax() == 0
    assert pixels[2].mean(axis=(0, 1)).argmax() == 1


def test_without_a_guard_it_is_that_of_the_network_that_comes_with_oodles():
    shipped = load_saved(None)
    assert not shipped.own
    assert shipped.class_names == tuple(read_card(SHIPPED)["classes"])


def test_the_recorded_preprocessing_is_used_and_options_must_not_contradict_it(saved):
    recorded = json.loads(json.dumps({"size": 32, "resize": 32, "mean": CIFAR.mean, "std": CIFAR.std}))
    guard = replace(saved, folder=Path("guard"), record={**saved.record, "preprocessing": recorded})
    assert guard.preprocessing(image_options(None, None, None, None)) == CIFAR
    assert guard.preprocessing(image_options(32, None, None, "0.2023,0.1994,0.2010")) == CIFAR
    for other in ((224, None, None, None), (None, None, "0,0,0", None)):
        with pytest.raises(ArgumentError, match="guard was fitted with other preprocessing"):
            guard.preprocessing(image_options(*other))


@pytest.mark.parametrize("given", [(None, None, None), (64, None, None), (64, "0,0,0", None), (None, "0,0,0", "1,1,1")])
def test_unknown_preprocessing_is_never_guessed(saved, given):
    size, mean, std = given
    guard = replace(saved, record={**saved.record, "preprocessing": None})
    with pytest.raises(ArgumentError, match="does not record how images were preprocessed; give --size, --mean and"):
        guard.preprocessing(image_options(size, None, mean, std))


def test_preprocessing_that_is_not_recorded_can_be_given(saved):
    guard = replace(saved, record={**saved.record, "preprocessing": None})
    found = guard.preprocessing(image_options(64, 72, "0,0,0", "1,1,1"))
    assert (found.size, found.resize, found.mean, found.std) == (64, 72, (0, 0, 0), (1, 1, 1))
