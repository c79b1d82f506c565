import json

import pytest
import torch
from support.command_line import MODEL, NETWORK, SIZE, loader, network

import oodles
from oodles.features import Features


def test_the_explanations_are_those_of_the_guard(fitted, workspace, oodles_run):
    images = ["test/red/003.png", "test/blue/000.png"]
    code, out, err = oodles_run("explain", fitted / "guard", *images, *NETWORK, "--json")
    assert code == 0, err
    document = json.loads(out, parse_constant=pytest.fail)
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    assert (document["detector"], document["threshold"]) == (guard.detector.spec, guard.threshold.value)
    assert [each["input"] for each in document["explanations"]] == images
    for record, path in zip(document["explanations"], images, strict=True):
        (batch,) = loader(workspace / path)
        (expected,) = guard.explain(batch)
        assert record["score"] == pytest.approx(expected.score, rel=1e-5)
        assert (record["is_id"], record["class_name"]) == (expected.is_id, expected.class_name)
        assert record["class_name"] in ("red", "blue")
        assert record["findings"][0]["spec"] == "dice(0.5)+energy"
        assert {"input", *expected.as_record()} == record.keys()


def test_the_explanation_in_words_follows_the_name_of_the_image(fitted, workspace, oodles_run):
    command = ["explain", fitted / "guard", "test/red/003.png", "test/red/004.png", *NETWORK]
    code, out, err = oodles_run(*command)
    assert code == 0, err
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    images = torch.cat([*loader(workspace / "test/red/003.png"), *loader(workspace / "test/red/004.png")])
    first, second = (["  " + line for line in str(each).splitlines()] for each in guard.explain(images))
    assert out.splitlines() == ["test/red/003.png:", *first, "test/red/004.png:", *second]
    train = Features.load(fitted / "train")
    code, out, err = oodles_run(*command, "--train", fitted / "train")
    assert code == 0, err
    compared = [line for each in guard.explain(images, train=train) for line in str(each).splitlines()]
    assert [line.removeprefix("  ") for line in out.splitlines() if line.startswith(" ")] == compared
    assert compared != [line.removeprefix("  ") for line in (*first, *second)]


def test_without_a_guard_the_network_that_comes_with_oodles_is_used(oodles_run):
    code, out, err = oodles_run("explain", "test/red/003.png")
    assert code == 0, err
    assert "no guard given: using cifar10-small" in err
    assert out.startswith("test/red/003.png:\n  ")


@pytest.mark.slow
def test_an_exported_guard_explains_as_the_saved_one_does(fitted, exported, oodles_run):
    images = ["test/red/003.png", "damaged", "green/000.png"]
    saved = ["explain", fitted / "guard", *images, *NETWORK, "--skip-bad"]
    by_graph = ["explain", exported, *images, "--skip-bad"]
    code, out, err = oodles_run(*by_graph)
    assert code == 0, err
    assert out == oodles_run(*saved)[1]
    one, other = (json.loads(oodles_run(*command, "--json")[1]) for command in (saved, by_graph))
    assert (one["detector"], one["threshold"]) == (other["detector"], other["threshold"])
    assert one["skipped"] == other["skipped"] != []
    for mine, theirs in zip(one["explanations"], other["explanations"], strict=True):
        assert mine.keys() == theirs.keys()
        assert theirs["input"] == mine["input"]
        assert theirs["score"] == pytest.approx(mine["score"], rel=1e-4)
        (ours,), (found,) = mine["findings"], theirs["findings"]
        assert found["contributions"]["dropped"] == pytest.approx(ours["contributions"]["dropped"], rel=1e-4)
        assert [unit["unit"] for unit in found["contributions"]["largest_kept"]] == [
            unit["unit"] for unit in ours["contributions"]["largest_kept"]
        ]


def test_options_that_an_exported_guard_does_not_take(exported, fitted, refused):
    explain = ["explain", exported, "test/red/003.png"]
    assert "contains its model and preprocessing; leave out the model" in refused(*explain, *NETWORK)
    assert "contains its model and preprocessing; leave out the preprocessing" in refused(*explain, *SIZE)
    assert "takes images, not the features" in refused(*explain, "--train", fitted / "train")


def test_skipped_images(fitted, oodles_run):
    command = ["explain", fitted / "guard", "damaged", *NETWORK, "--skip-bad"]
    code, out, _ = oodles_run(*command)
    assert code == 0
    assert "\nskipped  damaged/broken.png: " in out
    document = json.loads(oodles_run(*command, "--json")[1])
    assert len(document["explanations"]) == 3
    assert [each["input"] for each in document["skipped"]] == ["damaged/broken.png"]


def test_invalid_arguments_are_refused(fitted, refused, oodles_run, tmp_path):
    explain = ["explain", fitted / "guard", "test/red/003.png"]
    assert "images need --model and --checkpoint" in refused(*explain)
    assert "guards another model: the weights or hyperparameters differ" in refused(*explain, "--model", MODEL, *SIZE)
    assert "damaged/broken.png cannot be read" in refused("explain", fitted / "guard", "damaged", *NETWORK)
    other = ["--model", MODEL, "--checkpoint", "two.pt", *SIZE, "--out", tmp_path / "two"]
    assert oodles_run("extract", "test", *other)[0] == 0
    line = refused(*explain, *NETWORK, "--train", tmp_path / "two")
    assert "two has features of another model than" in line
