import base64
import io
import os
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image
from support.images import write_image
from support.pages import Page, check_page
from support.scored import failed, scored, write_scored

from oodles.report import results_part, write_report

EVIL = "<script>alert(1)</script>"


def report_on(path: Path) -> Page:
    write_report(path.with_suffix(".html"), results_part(path))
    return check_page(path.with_suffix(".html"))


def test_rejections_classes_and_errors_are_counted(tmp_path: Path) -> None:
    rows = [scored(f"{place}.png", place - 3.5, class_name="cat" if place % 2 else "dog") for place in range(10)]
    path = write_scored(tmp_path / "results.jsonl", [*rows, failed("x.png"), failed("y.png")])
    facts = results_part(path).facts
    assert [facts[name] for name in ("rejected", "accepted", "not scored")] == ["4", "6", "2"]
    text = report_on(path).text
    assert "40.0 % [16.8, 68.7]" in text
    assert "2 of 12 inputs could not be scored" in text
    assert "empty file 2" in text


@pytest.mark.parametrize(("rejected", "advice"), [(30, "Look at the rejected"), (4, "Nothing unusual")])
def test_the_recommendation_follows_the_share(tmp_path: Path, rejected: int, advice: str) -> None:
    rows = [scored("a", -1.0) for _ in range(rejected)] + [scored("a", 1.0) for _ in range(100 - rejected)]
    assert results_part(write_scored(tmp_path / "results.csv", rows)).recommendation.startswith(advice)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_no_rows(tmp_path: Path, suffix: str) -> None:
    assert "the file has no rows" in report_on(write_scored(tmp_path / f"results{suffix}", [])).text


def test_nothing_but_errors(tmp_path: Path) -> None:
    page = report_on(write_scored(tmp_path / "results.jsonl", [failed(f"{place}.png", EVIL) for place in range(30)]))
    assert "Not one of the 30 inputs could be scored" in page.text
    assert not page.all("svg")


def test_without_p_values_nothing_is_said_of_them(tmp_path: Path) -> None:
    with_them = report_on(write_scored(tmp_path / "a.jsonl", [scored("a", place) for place in range(9)]))
    without = report_on(write_scored(tmp_path / "b.jsonl", [scored("a", place, p_value=None) for place in range(9)]))
    assert "have a p-value below 0.05" in with_them.text
    assert "p-value below" not in without.text


@pytest.mark.parametrize("score", [0.0, -1.0, 1e300, -1e-300])
def test_equal_and_extreme_scores_can_be_drawn(tmp_path: Path, score: float) -> None:
    assert report_on(write_scored(tmp_path / "results.jsonl", [scored("a", score)] * 3)).all("svg")


def test_names_are_data(tmp_path: Path) -> None:
    rows = [scored(f"{EVIL}.png", 1.0, class_name=EVIL), scored("line\nend\x00.png", -1.0, class_name="'\"><b>")]
    rows.append(failed("javascript:alert(1)", EVIL))
    page = report_on(write_scored(tmp_path / "results.jsonl", rows))
    assert f"predicted: {EVIL}" in page.text
    assert "line\\nend\\x00.png" in page.text
    assert not page.all("b")


def test_inputs_are_shown_with_small_copies_of_their_images(tmp_path: Path) -> None:
    images = [write_image(tmp_path / f"{place:03}.png", size=(300, 200), seed=place) for place in range(100)]
    rows = [scored(str(image), place - 50.0) for place, image in enumerate(images)]
    page = report_on(write_scored(tmp_path / "results.jsonl", rows))
    assert 30 <= len(page.all("img")) <= 64
    for each in page.all("img"):
        source = each["src"] or ""
        with Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/jpeg;base64,")))) as copy:
            assert copy.size == (112, 75) == (int(each["width"] or 0), int(each["height"] or 0))
    texts = [page.text.index(f"{place:03}.png") for place in (0, 48, 52, 99)]
    assert texts == sorted(texts), "the least in-distribution first, then the borderline, then the most"
    assert "075.png" not in page.text


def test_what_is_no_readable_image_is_shown_without_a_picture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")  # opening it would wait for a writer
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    (tmp_path / "notes.txt").write_text("secret")
    names = ["pipe.png", "broken.png", "missing.png", "notes.txt", "nul\0.png", "features/val[3]"]
    rows = [scored(str(tmp_path / name), 1.0) for name in names]
    page = report_on(write_scored(tmp_path / "results.jsonl", rows))
    assert not page.all("img")
    assert page.text.count("no picture") == 12, "four names of images, each in three galleries"
    assert "secret" not in page.source


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK"])
def test_images_of_every_kind_are_copied(tmp_path: Path, mode: str) -> None:
    suffix = ".tif" if mode == "CMYK" else ".png"
    image = write_image(tmp_path / f"image{suffix}", mode=mode)
    page = report_on(write_scored(tmp_path / "results.jsonl", [scored(str(image), 1.0)]))
    assert page.all("img")


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_read_in_little_memory(tmp_path: Path) -> None:
    rows = [scored(f"images/{place}.txt", (place * 7919 % 100_003) / 1e5 - 0.1) for place in range(1000)]
    small = write_scored(tmp_path / "results.jsonl", rows)
    large = tmp_path / "large.jsonl"
    large.write_bytes(small.read_bytes() * 100)
    results_part(small)  # imports
    tracemalloc.start()
    part = results_part(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.facts["inputs"] == "100,000"
    assert peak < 40_000_000
