import re
import shutil

import pytest
import torch
from PIL import Image
from support.command_line import MODEL, NETWORK, SIZE, WATCHED, loader, network

from oodles.features import Features
from oodles.network.extraction import extract

TRAIN = ["extract", "train", "--out", "features/new"]
TEN = ["--model", f"{MODEL}(10)", "--checkpoint", "ten.pt", *SIZE]


def test_extract_writes_the_features_that_the_library_gives(fitted, workspace, succeeded):
    _, err = succeeded("extract", "train", "--out", fitted / "train", *NETWORK)
    assert "rows=120" in err
    features = Features.load(fitted / "train")
    expected = extract(network(workspace), loader(workspace / "train"))
    assert torch.equal(features.labels, torch.tensor([0] * 60 + [1] * 60))
    torch.testing.assert_close(features.embedding, expected.embedding, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.logits, expected.logits, rtol=1e-5, atol=1e-5)


def test_options(succeeded, tmp_path):
    _, err = succeeded("extract", "damaged", "--out", tmp_path / "s", "--skip-bad", "--no-labels", "--half", *NETWORK)
    assert re.search(r"skipped(.|\n)*broken\.png", err)
    stored = Features.load(tmp_path / "s")
    assert (len(stored), stored.labels, stored.embedding.dtype) == (3, None, torch.float16)
    succeeded("extract", "train", "--out", tmp_path / "few", "--limit", "7", "--head", "4", *NETWORK)
    assert len(Features.load(tmp_path / "few")) == 7


def test_images_that_give_nan_are_left_out_if_bad_ones_are(workspace, succeeded, refused, tmp_path):
    shutil.copytree(workspace / "test" / "red", tmp_path / "images")
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "000.png")
    arguments = ["extract", tmp_path / "images", "--out", tmp_path / "s", "--no-labels", *SIZE, "--model", WATCHED]
    assert "the first is input 0" in refused(*arguments)
    _, err = succeeded(*arguments, "--skip-bad")
    assert "1 of 25 inputs give NaN or infinite values and are left out" in " ".join(err.split())
    assert Features.load(tmp_path / "s").bad_rows == (0,)


def test_layers_and_steps_that_a_detector_needs(succeeded, tmp_path):
    needs = ["--for", "odin(epsilon=0.004)", "--for", "mahalanobis(layers=('0',), epsilon=0.0)"]
    succeeded("extract", "grey", "--out", tmp_path / "s", *needs, *NETWORK)
    layer, step = sorted(Features.load(tmp_path / "s").layers)
    assert layer == "0"
    assert step.startswith("odin(temperature=1000.0, epsilon=0.004")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["extract", "empty", "--out", "o", "--model", MODEL], "empty holds no images"),
        (["extract", "damaged", "--out", "o1", *NETWORK], "damaged: 1 of 4 images cannot be read (broken.png: "),
        ([*TRAIN, "--model", MODEL, "--checkpoint", "other.pt"], "other.pt does not fit Sequential: "),
        ([*TRAIN, "--model", MODEL, "--checkpoint", "train/red/000.png"], "000.png is not a checkpoint"),
        ([*TRAIN, "--model", "tiny_net_of_the_cli_tests"], "is not of the form package.module:factory"),
        ([*TRAIN, "--model", "tiny_net_of_the_cli_tests:nothing"], "tiny_net_of_the_cli_tests has no nothing"),
        ([*TRAIN, "--model", "no_such_module_here:f"], "cannot be imported"),
        ([*TRAIN, "--model", f"{MODEL}(classes="], "is not of the form"),
        ([*TRAIN, "--model", ":net"], ":net"),
        ([*TRAIN, "--model", MODEL, "--size", "9", "--resize", "8"], "size=9 must lie between 1 and resize=8"),
        ([*TRAIN, "--model", MODEL, "--head", "fc", *SIZE], "head='fc' is not a module of Sequential"),
        (["extract", "train", "--out", "train", "--model", MODEL, *SIZE], "train contains other files"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(refused, arguments, message):
    assert message in refused(*arguments, notices=False)


def test_the_accuracy_by_the_labels_is_printed_and_missing_class_folders_are_pointed_out(succeeded, tmp_path):
    """Folders are numbered in order, so with fewer folders than classes images get the labels of others."""
    _, err = succeeded("extract", "train", *NETWORK, "--out", tmp_path / "two")
    assert re.search(r"the model's accuracy by these labels is \d+\.\d%", err)
    assert "class folders" not in err
    _, err = succeeded("extract", "train", *TEN, "--out", tmp_path / "ten")
    assert "warning 2 class folders were numbered 0 to 1, but the model has 10 classes" in err
    _, err = succeeded("extract", "train", *TEN, "--no-labels", "--out", tmp_path / "none")
    assert "class folders" not in err
    assert "by these labels" not in err


def test_class_folders_are_matched_with_the_names_in_a_file(workspace, succeeded, tmp_path):
    names = ["a", "red", "b", "c", "d", "e", "f", "blue", "g", "h"]
    (tmp_path / "names.txt").write_text("\n".join(names))
    _, err = succeeded("extract", "test", *TEN, "--classes", tmp_path / "names.txt", "--out", tmp_path / "s")
    assert "class folders" not in err
    features = Features.load(tmp_path / "s")
    assert features.class_names == tuple(names)
    assert features.labels.tolist() == [7] * 25 + [1] * 25
    accuracy = float((features.logits.argmax(dim=1) == features.labels).double().mean())
    assert features.accuracy == accuracy
    assert f"the model's accuracy by these labels is {accuracy:.1%}" in err
    assert re.search("warning .* though its mean confidence is 9.*--classes", err), "no image is of its own class"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["blue", "green"], "the class folder red is not a class of Sequential"),
        (["blue", "red", "green"], "3 names, but the model has 2 classes"),
        (["blue", "blue"], "2 names of which only 1 differ"),
    ],
)
def test_names_that_are_not_those_of_the_model(refused, tmp_path, names, message):
    (tmp_path / "names.txt").write_text("\n".join(names))
    command = ["extract", "test", *NETWORK, "--classes", tmp_path / "names.txt", "--out", tmp_path / "s"]
    assert message in refused(*command)
    assert not (tmp_path / "s" / "manifest.json").exists()


def test_files_that_are_not_images_and_missing_labels_are_pointed_out(workspace, succeeded, tmp_path):
    shutil.copytree(workspace / "grey", tmp_path / "mixed" / "grey")
    (tmp_path / "mixed" / "grey" / "clip.mp4").write_bytes(b"0")
    command = ["extract", tmp_path / "mixed", *NETWORK]
    _, err = succeeded(*command, "--out", tmp_path / "s")
    assert "1 file is not an image that oodles reads: grey/clip.mp4" in err
    assert "all images are in one folder, grey, so none has a label" in err
    assert "none has a label" not in succeeded(*command, "--no-labels", "--out", tmp_path / "t")[1]
