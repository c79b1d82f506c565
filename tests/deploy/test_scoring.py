"""From inputs to rows: what is scored, in which order, and what becomes of files that cannot be read."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from support.images import write_image

from oodles.calibration import Threshold
from oodles.cli.common import print_json
from oodles.cli.score import _print
from oodles.data.readers import open_image
from oodles.data.transforms import Transform
from oodles.deploy.results.reading import read_rows
from oodles.deploy.results.rows import COLUMNS, Row
from oodles.deploy.scoring import NOT_FINITE, Counts, decode_ahead, score_files, score_inputs
from oodles.deploy.sources import ImageBatch
from oodles.deploy.verdict import Verdict

SMALL = Transform(8, 8, (0.5,) * 3, (0.25,) * 3)


class StandIn:
    """A guard whose score is the mean brightness, NaN for the first image of a batch, and infinite for a white one."""

    path, class_names, detector, version = "guard", ("dark", "light"), "energy", "0" * 64
    identity = "1" * 64
    threshold, transform, reads = Threshold(0.25, 0.95, 100), SMALL, SMALL

    def check_images(self):
        pass

    def batch(self, pixels):
        return pixels

    def judge(self, pixels):
        assert (pixels.dtype, pixels.shape[1:]) == (np.uint8, (3, 8, 8))
        rows = len(pixels)
        score = pixels.reshape(rows, -1).mean(axis=1) / 255
        score[0] = np.nan
        score[score == 1] = np.inf
        p_value = np.where(score > 0.5, np.nan, 0.5)
        label = (score > 0.5).astype(np.int64)
        return Verdict(np.zeros((rows, 2)), label, np.full(rows, 0.75), score, p_value, score >= 0.25)


def painted(path, colour):
    Image.new("RGB", (8, 8), colour).save(path)
    return path


def test_rows_stay_in_order_around_images_that_cannot_be_scored(tmp_path):
    colours = [(200, 200, 200), (0, 0, 0), (0, 0, 0), (80, 80, 80), (255, 255, 255), (200, 200, 200)]
    paths = [painted(tmp_path / f"{number}.png", colour) for number, colour in enumerate(colours)]
    paths[1].write_bytes(b"no image")
    first, second = score_inputs(StandIn(), paths, batch_size=5, workers=2)
    assert [row.path for row in [*first, *second]] == list(map(str, paths))
    assert [row.error for row in (first[0], first[4], *second)] == [NOT_FINITE] * 3
    assert "not an image" in first[1].error
    assert first[2][1:] == (0, "dark", 0.75, 0.0, 0.5, False, None)
    assert first[3][1:] == (0, "dark", 0.75, pytest.approx(80 / 255), 0.5, True, None)
    counts = Counts()
    counts.add(first)
    assert (counts.accepted, counts.rejected, counts.errors, counts.ood_rate) == (1, 1, 3, 0.8)


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_files_are_scored_from_python(tmp_path, kind):
    paths = [write_image(tmp_path / f"{number}.png", seed=number) for number in range(5)]
    (paths[2]).write_bytes(b"no image")
    out, seen = tmp_path / f"results{kind}", []
    counts = score_files(StandIn(), paths, out, batch_size=2, progress=lambda counts: seen.append(counts.total))
    assert (seen, counts.total) == ([2, 4, 5], 5)
    expected = [row for rows in score_inputs(StandIn(), paths, batch_size=2) for row in rows]
    assert list(read_rows(out)) == expected
    before = out.read_bytes()
    lines = before.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:-2]))  # the last whole batch is half there
    seen.clear()
    again = score_files(
        StandIn(), paths, out, batch_size=2, resume=True, progress=lambda counts: seen.append(counts.total)
    )
    assert (out.read_bytes(), again) == (before, counts)
    assert seen == [2, 4, 5]


def test_images_are_decoded_ahead_and_what_is_left_is_not_decoded_when_the_consumer_stops(tmp_path):
    path, opened = write_image(tmp_path / "a.png"), []

    def opener(number):
        def run():
            opened.append(number)
            return open_image(path)

        return run

    batches = (ImageBatch([f"{number}"], [opener(number)]) for number in range(100))
    decoded = decode_ahead(batches, SMALL, 1)
    batch, (image,) = next(decoded)
    assert batch.names == ["0"]
    assert image.shape == (3, 8, 8)
    del decoded
    assert 1 <= len(opened) <= 4


CAT = Row("a/cat.png", 0, "cat", 0.75, 1.5, 0.5, True)
ODD = Row('a/"b", c.png', 1, None, 0.5, 0.25, None, False)
BROKEN = Row("a/broken.png", error="empty file")


@pytest.mark.parametrize(("as_csv", "as_json"), [(False, False), (True, False), (False, True)])
def test_a_batch_is_printed_before_the_next_one_is_computed(as_csv, as_json, capsys):
    printed = []

    def batches():
        for batch in ([CAT, BROKEN], [ODD]):
            yield batch
            printed.append(capsys.readouterr().out)

    _print(batches(), StandIn(), as_csv, as_json)
    assert "cat.png" in printed[0]
    assert "cat.png" not in printed[1]
    whole = "".join([*printed, capsys.readouterr().out])
    if as_json:
        rows = [row._asdict() for row in (CAT, BROKEN, ODD)]
        assert json.loads(whole) == {"detector": "energy", "threshold": 0.25, "verdicts": rows}
    elif as_csv:
        assert list(csv.reader(whole.splitlines())) == [
            [*COLUMNS],
            ["a/cat.png", "0", "cat", "0.75", "1.5", "0.5", "true", ""],
            ["a/broken.png", "", "", "", "", "", "false", "empty file"],
            ['a/"b", c.png', "1", "", "0.5", "0.25", "", "false", ""],
        ]
    else:
        assert whole.splitlines() == [
            "ID            1.5  cat         a/cat.png",
            "error  a/broken.png: empty file",
            'OOD          0.25  class 1     a/"b", c.png',
        ]


def test_json_without_any_record_and_with_something_after_it(capsys):
    after = {"skipped": []}

    def batches():
        after["skipped"].append("a.png")
        yield []

    print_json(batches(), {"detector": "msp"}, "verdicts", after)
    assert json.loads(capsys.readouterr().out) == {"detector": "msp", "verdicts": [], "skipped": ["a.png"]}
