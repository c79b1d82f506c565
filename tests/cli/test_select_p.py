import re

import pytest
from PIL import Image
from support.command_line import NETWORK

from oodles.paper.sweep import PAPER_GRID
from oodles.selection.sparsity import FINE_GRID

SELECT = ["select-p", "train", "--held-out", "test", *NETWORK, "--noise", "30"]


def test_the_table_the_plot_and_the_json_agree(succeeded, json_of, tmp_path):
    out, _ = succeeded(*SELECT, "--out", tmp_path / "curve.png")
    assert [float(p) for p in re.findall(r"^p=(\S+)", out, re.MULTILINE)] == list(PAPER_GRID)
    assert out.count("<- chosen") == 1
    with Image.open(tmp_path / "curve.png") as picture:
        picture.load()
    found = json_of(*SELECT)
    assert list(found["curve"]) == [str(p) for p in PAPER_GRID]
    assert f"p={found['p']:<5g} AUROC {100 * found['curve'][str(found['p'])]['auroc']:6.2f}" in out
    best = max(row["auroc"] for row in found["curve"].values())
    tied = [float(p) for p, row in found["curve"].items() if row["auroc"] >= best - found["standard_error"]]
    assert found["p"] == max(tied)
    assert {(row["n_id"], row["n_ood"]) for row in found["curve"].values()} == {(50, 30)}


def test_options(json_of):
    options = ["--fine", "--detector", "react(95)+weight_pruning", "--limit", "15", "--seed", "3"]
    found = json_of(*SELECT, *options)
    assert list(found["curve"]) == [str(p) for p in FINE_GRID]
    assert found["curve"]["0.5"]["detector"] == "react(95)+weight_pruning(0.5)+energy"
    assert found["curve"]["0.5"]["n_id"] == 15


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--detector", "msp"], "has no sparsifier, so no p to choose"),
        (["--detector", "knn"], "--detector knn has no sparsifier, so there is no p to choose"),
        (["--detector", "dise"], "dise"),
        (["--noise", "0"], "Invalid value for '--noise'"),
        (["--checkpoint", "ten.pt"], "ten.pt does not fit Sequential"),
        (["--out", "curve.txt"], "curve.txt"),
    ],
)
def test_invalid_arguments_are_refused(refused, workspace, tmp_path, more, message):
    assert message in refused(*SELECT, "--out", tmp_path / "curve.png", *more)
    assert list(tmp_path.iterdir()) == []
    assert not (workspace / "curve.txt").exists()
