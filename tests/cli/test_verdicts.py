import csv
import json

import pytest

from oodles.cli.verdicts import print_csv, print_json, print_text
from oodles.deploy.results.rows import COLUMNS, Row

CAT = Row("a/cat.png", 0, "cat", 0.75, 1.5, 0.5, True)
ODD = Row('a/"b", c.png', 1, None, 0.5, 0.25, None, False)
BROKEN = Row("a/broken.png", error="empty file")
BATCHES = [[CAT, BROKEN], [ODD]]


def as_json(batches):
    print_json(([row._asdict() for row in batch] for batch in batches), {"detector": "msp"}, "verdicts")


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
        "error  a/broken.png: empty file",
        'OOD          0.25  class 1     a/"b", c.png',
    ]


def test_csv(capsys):
    print_csv(BATCHES)
    assert list(csv.reader(capsys.readouterr().out.splitlines())) == [
        [*COLUMNS],
        ["a/cat.png", "0", "cat", "0.75", "1.5", "0.5", "true", ""],
        ["a/broken.png", "", "", "", "", "", "false", "empty file"],
        ['a/"b", c.png', "1", "", "0.5", "0.25", "", "false", ""],
    ]


def test_json_is_one_valid_document(capsys):
    as_json(BATCHES)
    document = json.loads(capsys.readouterr().out)
    assert document == {"detector": "msp", "verdicts": [row._asdict() for row in (CAT, BROKEN, ODD)]}


def test_json_without_any_record_and_with_something_after_it(capsys):
    after = {"skipped": []}

    def batches():
        after["skipped"].append("a.png")
        yield []

    print_json(batches(), {"detector": "msp"}, "verdicts", after)
    assert json.loads(capsys.readouterr().out) == {"detector": "msp", "verdicts": [], "skipped": ["a.png"]}
