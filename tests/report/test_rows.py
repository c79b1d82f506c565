import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.pages import check_page
from support.rows import row as usual_row

from oodles.bench.tables import Cell, rows_json
from oodles.errors import DataError
from oodles.metrics import Row
from oodles.report import read_rows, rows_parts, write_report
from oodles.report.document import Part

GOLDEN = Path(__file__).parents[1] / "golden" / "demo_rows.json"


def row(detector: str, ood_set: str, fpr95: float, **values: Any) -> Row:
    return usual_row(detector, ood_set, fpr95, **{"n_id": 1000, "n_ood": 500, **values})


def cells(part: Part, section: int = 0) -> dict[str, list[Cell]]:
    return {str(line[0].value): list(line[1:]) for line in part.sections[section].tables[0].rows}


def test_the_best_detector_is_recommended_and_the_next_one_named() -> None:
    rows = [row("msp", "a", 0.5), row("msp", "b", 0.7), row("knn", "a", 0.1), row("knn", "b", 0.3)]
    (part,) = rows_parts(rows)
    assert part.recommendation.startswith("Recommended: knn. On these 2 OOD sets it accepts 20.0 %")
    more = "which is more than the numbers of OOD rows alone explain"
    assert f"msp, accepts 40.0 points more, {more}" in part.recommendation
    assert part.summary[0] == "knn has the lowest FPR95 on every set."
    assert "b: 30.0 %" in part.summary[1]
    table = cells(part)
    assert list(table) == ["knn", "msp"]
    assert [cell.value for cell in table["knn"]] == pytest.approx([20, 10, 30])
    assert [cell.best for cell in table["knn"]] == [True] * 3
    assert [cell.best for cell in table["msp"]] == [False] * 3


def test_a_small_difference_is_called_small() -> None:
    (part,) = rows_parts([row("msp", "a", 0.50), row("knn", "a", 0.48)])
    assert "2.0 points more, which is no more than the numbers of OOD rows alone explain" in part.recommendation
    (part,) = rows_parts([row("msp", "a", 0.50, n_ood=100_000), row("knn", "a", 0.48, n_ood=100_000)])
    assert "points more, which is more than the numbers" in part.recommendation
    wide, rows = {"fpr95": (0.3, 0.7), "auroc": (0.8, 0.95)}, {"msp": 0.50, "knn": 0.40}
    (part,) = rows_parts([row(name, "a", value, n_ood=100_000, intervals=wide) for name, value in rows.items()])
    assert "which is no more than the uncertainty of both explains" in part.recommendation, "ID rows are few"


def test_a_single_detector_is_compared_with_nothing() -> None:
    (part,) = rows_parts([row("knn", "a", 0.48)])
    assert "next best" not in part.recommendation
    assert "best of" not in " ".join(part.summary)


def test_it_says_where_another_detector_is_better() -> None:
    (part,) = rows_parts([row("msp", "a", 0.5), row("msp", "b", 0.1), row("knn", "a", 0.1), row("knn", "b", 0.2)])
    assert "lower FPR95 than knn: msp on b." in part.summary[0]


def test_intervals_are_shown_and_compared() -> None:
    near, far = {"fpr95": (0.1, 0.3), "auroc": (0.8, 0.95)}, {"fpr95": (0.25, 0.5), "auroc": (0.7, 0.9)}
    (part,) = rows_parts([row("knn", "a", 0.2, intervals=near), row("msp", "a", 0.4, intervals=far)])
    assert "from bootstrap resamples" in " ".join(part.summary)
    assert cells(part)["knn"][0].interval == pytest.approx((10, 30))
    assert cells(part, 1)["msp"][0].interval == pytest.approx((70, 90))
    (part,) = rows_parts([row("knn", "a", 0.2, n_ood=400), row("msp", "a", 0.4)])
    assert "standard error of 2.0 points" in " ".join(part.summary)


def test_the_papers_numbers_are_beside_ours_and_its_average_only_if_the_sets_are_the_same() -> None:
    (part,) = rows_parts([row("msp", "svhn", 0.5, id_set="cifar10"), row("msp", "textures", 0.5, id_set="cifar10")])
    average, svhn, _ = cells(part)["msp"]
    assert svhn.published == 47.24
    assert average.published is None
    (part,) = rows_parts([row("msp", "svhn", 0.5, id_set="mine")])
    assert cells(part)["msp"][0].published is None


def test_seeds_become_a_mean_and_a_deviation() -> None:
    rows = [row(f"random_k(0.9, seed={seed})+energy", "a", 0.1 * seed) for seed in (1, 2, 3)]
    (part,) = rows_parts(rows)
    (cell,) = cells(part)["random_k(0.9)"]
    assert cell.value == pytest.approx(20)
    assert cell.deviation == pytest.approx(10)
    assert cell.text(".1f") == "20.0±10.0"


def test_a_detector_without_all_sets_is_not_ranked_but_named() -> None:
    (part,) = rows_parts([row("msp", "a", 0.5), row("msp", "b", 0.1), row("knn", "a", 0.01)])
    assert part.recommendation.startswith("Recommended: msp")
    assert "Not ranked, because rows of some sets are missing: knn." in part.summary


def test_of_rows_for_the_same_the_last_counts() -> None:
    rows = [row("msp", "a", 0.5), row("msp", "a", 0.4), row("knn", "a", 0.6)]
    (part,) = rows_parts(rows)
    assert cells(part)["msp"][0].value == pytest.approx(40)
    assert part == rows_parts(rows[1:])[0]


def test_each_id_set_has_a_part() -> None:
    parts = rows_parts([row("msp", "a", 0.5, id_set="x"), row("msp", "a", 0.5, id_set="y")])
    assert [part.title for part in parts] == ["Detectors compared, x", "Detectors compared, y"]


def test_the_rows_of_the_demo_as_a_page_that_begins_with_the_summary(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", *rows_parts(read_rows(GOLDEN)))
    page = check_page(tmp_path / "report.html")
    assert "Recommended: default." in page.text
    assert "(47.2)" in page.text
    assert page.text.index("Summary") < page.text.index("Recommended") < page.text.index("FPR95 on each set")
    assert len(page.all("svg")) == 1


def test_names_are_data(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = tmp_path / "rows.json"
    path.write_text(rows_json([row(name, f"{evil}\n\x00", 0.5, id_set=evil) for name in (evil, "$x$")]))
    write_report(tmp_path / "report.html", *rows_parts(read_rows(path)), title=evil)
    page = check_page(tmp_path / "report.html")
    assert f"{evil}\\n\\x00" in page.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b"[" * 100_000,
        b'[{"detector": "msp"}]',
        b"\xff\xfe",
        json.dumps([row("msp", "a", 0.5).as_dict() | {"fpr95": 2}]).encode(),
        json.dumps([row("msp", "a", 0.5).as_dict() | {"n_ood": 0}]).encode(),
        json.dumps([row("msp", "a", 0.5).as_dict() | {"detector": "x" * 2000}]).encode(),
        json.dumps([row("msp", "a", 0.5).as_dict() | {"intervals": {"fpr95": [0]}}]).encode(),
        json.dumps([row("msp", "a", 0.5).as_dict()]).replace("0.5", "NaN").encode(),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.json") as refused:
        read_rows(path)
    assert "\n" not in str(refused.value)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 30)
    for name in ("pipe.json", "large.json", "missing.json"):
        with pytest.raises(DataError):
            read_rows(tmp_path / name)


def test_no_rows_and_very_many_sets_are_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        rows_parts([])
    with pytest.raises(DataError, match="41 OOD sets"):
        rows_parts([row("msp", f"set{place}", 0.5) for place in range(41)])
    with pytest.raises(DataError, match=r"no detector has rows of all OOD sets \(a, b\)"):
        rows_parts([row("msp", "a", 0.5), row("knn", "b", 0.5)])


def test_very_many_detectors_still_fit(tmp_path: Path) -> None:
    one = row("msp", "a", 0.5)
    rows = [replace(one, detector=f"dice({place})", ood_set=name) for place in range(150) for name in "abc"]
    write_report(tmp_path / "report.html", *rows_parts(rows))
    assert "The best 120 of 150 detectors are shown." in check_page(tmp_path / "report.html").text
