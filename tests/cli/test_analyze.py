import csv
import re

import pytest


def test_analyze_draws_and_measures(succeeded, benched, tmp_path):
    out, err = succeeded("analyze", benched, "--out", tmp_path, "--class", "1", "--p", "0.5", "--ood", "grey")
    assert len(list(tmp_path.iterdir())) == 16
    assert "16 files" in err
    assert re.search(r"^  test +from \d+\.\d\d to \d+\.\d\d, mean", out, re.MULTILINE)
    for name in ("test", "green", "grey"):
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
    with (tmp_path / "figure2-outputs.csv").open(newline="") as file:
        assert {row["set"] for row in csv.DictReader(file)} == {"id", "grey"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--class", "99"], "label=99 must lie between 0 and 1 for 2 classes"),
        (["--ood", "pink"], "OOD set 'pink' must be one of green, grey"),
        (["--out", "one.pt"], "'one.pt' is a file"),
    ],
)
def test_invalid_arguments_are_refused(refused, benched, tmp_path, more, message):
    assert message in refused("analyze", benched, "--out", tmp_path / "out", *more)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_an_experiment(refused, benched, tmp_path):
    assert "/train/train does not exist;" in refused("analyze", benched / "train", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
