import pytest
from support.command_line import NETWORK

from oodles.detectors import default_detector
from oodles.selection.outliers import KINDS, NOISE

SELECT = ["select", "train", "--held-out", "test", *NETWORK, "--count", "30"]
CANDIDATES = ["--detector", "energy", "--detector", "dice(0.5)", "--detector", "knn(3)"]


def test_the_table_and_the_json_agree(succeeded, json_of):
    out, err = succeeded(*SELECT, *CANDIDATES)
    assert out.count("<- chosen") == 1
    found = json_of(*SELECT, *CANDIDATES)
    specs = [row["detector"] for row in found["candidates"]]
    assert set(specs) == {default_detector().spec, "msp", "energy", "dice(0.5)+energy", "knn(k=3)"}
    utilities = [row["utility"] for row in found["candidates"]]
    assert utilities == sorted(utilities, reverse=True)
    kinds = [NOISE, *KINDS]
    assert all(list(row["auroc"]) == kinds for row in found["candidates"])
    assert list(found["leave_one_kind_out"]) == kinds
    chosen = next(line for line in out.splitlines() if line.endswith("<- chosen"))
    assert chosen.split()[0] == found["detector"]
    for row in found["candidates"]:
        line = next(line for line in out.splitlines() if line.startswith(f"{row['detector']} "))
        assert line.split()[1] == f"{row['utility']:.3f}"
        assert [float(cell) for cell in line.split()[2:9]] == [round(100 * row["auroc"][kind], 1) for kind in kinds]
    assert found["verdict"] in " ".join(err.split())


def test_the_default_list_of_candidates(json_of):
    assert len(json_of(*SELECT, "--limit", "40", "--seed", "3")["candidates"]) > 150


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--detector", "odin"], "odin needs more of the network than embeddings"),
        (["--detector", "dise"], "dise"),
        (["--count", "1"], "at least two images"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--checkpoint", "ten.pt"], "ten.pt does not fit Sequential"),
    ],
)
def test_invalid_arguments_are_refused(refused, more, message):
    assert message in refused(*SELECT, *more)
