import pytest
import torch
from support.command_line import MODEL, NETWORK, SIZE, loader, network

import oodles
from oodles.features import Features


def test_the_explanations_are_those_of_the_guard(fitted, workspace, json_of):
    images = ["test/red/003.png", "test/blue/000.png"]
    document = json_of("explain", fitted / "guard", *images, *NETWORK)
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


def test_the_explanation_in_words_follows_the_name_of_the_image(fitted, workspace, succeeded):
    command = ["explain", fitted / "guard", "test/red/003.png", "test/red/004.png", *NETWORK]
    out, _ = succeeded(*command)
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    images = torch.cat([*loader(workspace / "test/red/003.png"), *loader(workspace / "test/red/004.png")])
    first, second = (["  " + line for line in str(each).splitlines()] for each in guard.explain(images))
    assert out.splitlines() == ["test/red/003.png:", *first, "test/red/004.png:", *second]
    train = Features.load(fitted / "train")
    out, _ = succeeded(*command, "--train", fitted / "train")
    compared = [line for each in guard.explain(images, train=train) for line in str(each).splitlines()]
    assert [line.removeprefix("  ") for line in out.splitlines() if line.startswith(" ")] == compared
    assert compared != [line.removeprefix("  ") for line in (*first, *second)]


def test_without_a_guard_the_network_that_comes_with_oodles_is_used(succeeded):
    out, err = succeeded("explain", "test/red/003.png")
    assert "no guard given: using cifar10-small" in err
    assert out.startswith("test/red/003.png:\n  ")


@pytest.mark.slow
def test_an_exported_guard_explains_as_the_saved_one_does(fitted, exported, succeeded, json_of):
    images = ["test/red/003.png", "damaged", "green/000.png"]
    saved = ["explain", fitted / "guard", *images, *NETWORK, "--skip-bad"]
    by_graph = ["explain", exported, *images, "--skip-bad"]
    assert succeeded(*by_graph)[0] == succeeded(*saved)[0]
    one, other = (json_of(*command) for command in (saved, by_graph))
    assert (one["detector"], one["threshold"]) == (other["detector"], other["threshold"])
    assert one["skipped"] == other["skipped"] != []
    for mine, theirs in zip(one["explanations"], other["explanations"], strict=True):
        assert mine.keys() == theirs.keys()
        assert theirs["input"] == mine["input"]
        assert theirs["score"] == pytest.approx(mine["score"], rel=1e-4)
        (ours,), (found,) = mine["findings"], theirs["findings"]
        assert found["contributions"]["dropped"] == pytest.approx(ours["contributions"]["dropped"], rel=1e-4)
        units, expected = ([unit["unit"] for unit in each["contributions"]["largest_kept"]] for each in (found, ours))
        assert units == expected


def test_options_that_an_exported_guard_does_not_take(exported, fitted, refused):
    explain = ["explain", exported, "test/red/003.png"]
    assert "contains its model and preprocessing; leave out the model" in refused(*explain, *NETWORK)
    assert "contains its model and preprocessing; leave out the preprocessing" in refused(*explain, *SIZE)
    assert "takes images, not the features" in refused(*explain, "--train", fitted / "train")


def test_skipped_images(fitted, succeeded, json_of):
    command = ["explain", fitted / "guard", "damaged", *NETWORK, "--skip-bad"]
    assert "\nskipped  damaged/broken.png: " in succeeded(*command)[0]
    document = json_of(*command)
    assert len(document["explanations"]) == 3
    assert [each["input"] for each in document["skipped"]] == ["damaged/broken.png"]


def test_invalid_arguments_are_refused(fitted, refused, succeeded, tmp_path):
    explain = ["explain", fitted / "guard", "test/red/003.png"]
    assert "images need --model and --checkpoint" in refused(*explain)
    assert "guards another model: the weights or hyperparameters differ" in refused(*explain, "--model", MODEL, *SIZE)
    assert "damaged/broken.png cannot be read" in refused("explain", fitted / "guard", "damaged", *NETWORK)
    succeeded("extract", "test", *NETWORK, "--checkpoint", "two.pt", "--out", tmp_path / "two")
    assert "two has features of another model than" in refused(*explain, *NETWORK, "--train", tmp_path / "two")
