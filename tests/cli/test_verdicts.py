import csv
import json
import math

import pytest

from oodles.cli.verdicts import Outcome, print_csv, print_json, print_text

CAT = Outcome("a/cat.png", 0, "cat", 1.5, True)
ODD = Outcome('a/"b", c.png', 1, None, 0.25, False)
UNKNOWN = Outcome("a/nan.png", 0, "cat", math.nan, False)
INFINITE = Outcome("a/inf.png", 0, "cat", math.inf, True)
BROKEN = Outcome("a/broken.png", problem="empty file")
BATCHES = [[CAT, BROKEN], [ODD, UNKNOWN, INFINITE]]


def as_json(batches):
    print_json(batches, {"detector": "msp", "threshold": 0.5}, "verdicts")


@pytest.mark.parametrize("write", [print_text, print_csv, as_json])
def test_a_batch_is_printed_before_the_next_one_is_computed(write, capsys):
    printed = []

    def batches():
        for batch in ([CAT], [ODD]):
            yield batch
            printed.append(capsys.readouterr().out)

    write(batches())
    assert "cat.png" in printed[0]
    assert "c.png" in printed[1]
    assert "cat.png" not in printed[1]


def test_text(capsys):
    print_text(BATCHES)
    assert capsys.readouterr().out.splitlines() == [
        "ID            1.5  cat         a/cat.png",
        "skipped  a/broken.png: empty file",
        'OOD          0.25  class 1     a/"b", c.png',
        "OOD           nan  -           a/nan.png: the network gives NaN or infinite values for it",
        "OOD           nan  -           a/inf.png: the network gives NaN or infinite values for it",
    ]


def test_csv(capsys):
    print_csv(BATCHES)
    printed = capsys.readouterr()
    assert list(csv.reader(printed.out.splitlines())) == [
        ["input", "label", "class", "score", "is_id"],
        ["a/cat.png", "0", "cat", "1.5", "true"],
        ["a/broken.png", "", "", "", ""],
        ['a/"b", c.png', "1", "", "0.25", "false"],
        ["a/nan.png", "0", "cat", "", "false"],
        ["a/inf.png", "0", "cat", "", "false"],
    ]
    assert printed.err.splitlines() == [
        "skipped a/broken.png: empty file",
        "not scored: a/nan.png: the network gives NaN or infinite values for it",
        "not scored: a/inf.png: the network gives NaN or infinite values for it",
    ]


def test_json_is_one_valid_document(capsys):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    as_json(BATCHES)
    document = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (document["detector"], document["threshold"]) == ("msp", 0.5)
    names = ("input", "label", "class", "score", "is_id")
    assert [tuple(each[name] for name in names) for each in document["verdicts"]] == [
        ("a/cat.png", 0, "cat", 1.5, True),
        ('a/"b", c.png', 1, None, 0.25, False),
        ("a/nan.png", 0, "cat", None, False),
        ("a/inf.png", 0, "cat", None, False),
    ]
    errors = [each.get("error") for each in document["verdicts"]]
    assert errors == [None, None, *["the network gives NaN or infinite values for it"] * 2]
    assert document["skipped"] == [{"input": "a/broken.png", "problem": "empty file"}]
