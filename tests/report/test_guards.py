"""Reports on guards, from small features as a network gives them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.images import write_image
from support.networks import one_thread  # noqa: F401
from support.pages import check_page

import oodles as ood
from oodles.calibration import Threshold, calibrate
from oodles.data.readers import open_images
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features
from oodles.report import guard_part, write_report
from oodles.report.document import Part, plain
from oodles.testing import example_features

EVIL = "<script>alert(1)</script>"
CLASSES = ("ant", "bee", EVIL, "dog")


def features(rows: int, seed: int) -> Features:
    return example_features(rows=rows, width=12, classes=4, seed=seed)


@pytest.fixture(scope="module")
def sets() -> tuple[Features, Features, dict[str, Features]]:
    """Training rows, ID rows of the same network, and two OOD sets, the first of which is easy to tell."""
    train, held_out = features(500, 3).split(0.4)
    head = train.head
    generator = torch.Generator().manual_seed(1)
    far = Features(3 * torch.rand(90, 12, generator=generator).flip(1) ** 4, head=head)
    near = Features(held_out.embedding[:60] * 0.6, head=head)
    return train, held_out, {"far": far, "near": near}


def report_on(detector: ood.Detector, sets: tuple, id_rows: Features | None = None, **options: Any) -> Part:
    """Fit the detector, set its threshold on the held-out rows, and report on these or on other ID rows."""
    train, held_out, _ = sets
    threshold = calibrate(detector.fit(train).score(held_out))
    return guard_part(detector, threshold, held_out if id_rows is None else id_rows, **options)


def section(part: Part, heading: str) -> dict:
    return next(each for each in plain(part)["sections"] if each["heading"] == heading)


def test_a_page_with_everything(sets: tuple, tmp_path: Path) -> None:
    train, held_out, outliers = sets
    detector = ood.combine(["dice(0.5)", "knn(3)"], train=train, held_out=held_out)
    threshold = calibrate(detector.score(held_out), 0.9)
    part = guard_part(detector, threshold, held_out, ood=outliers, train=train, class_names=CLASSES)
    beside = write_report(tmp_path / "report.html", part)
    page = check_page(tmp_path / "report.html")
    headings = [each.heading for each in part.sections]
    assert headings == ["Scores", "OOD sets", "ID rows by predicted class", "Inputs to look at"]
    assert len(page.all("svg")) == 2
    assert EVIL in page.text
    assert json.loads(beside.read_text())["parts"][0]["facts"]["set to accept"] == "90 % of ID"
    assert "nearest training rows" in page.text
    again = guard_part(detector, threshold, held_out, ood=outliers, train=train, class_names=CLASSES)
    assert again == part


def test_the_numbers_are_those_of_the_metrics(sets: tuple) -> None:
    train, held_out, outliers = sets
    detector = ood.DICE(p=0.5).fit(train)
    threshold = calibrate(detector.score(held_out))
    part = guard_part(detector, threshold, held_out, ood=outliers, train=train)
    rows = {row["OOD set"]: row for row in section(part, "OOD sets")["tables"][0]["rows"]}
    for name, each in outliers.items():
        row = ood.metrics.evaluate(detector.score(held_out), detector.score(each))
        rejected = float((~threshold.is_id(detector.score(each))).double().mean())
        assert rows[name]["AUROC, %"]["value"] == pytest.approx(100 * row.auroc)
        assert rows[name]["FPR95, %"]["value"] == pytest.approx(100 * row.fpr95)
        assert rows[name]["rejected, %"]["value"] == pytest.approx(100 * rejected)
        low, high = rows[name]["AUROC, %"]["interval"]
        assert low <= 100 * row.auroc <= high
    counts = section(part, "ID rows by predicted class")["tables"][0]["rows"]
    assert sum(row["inputs"] for row in counts) == len(held_out)


def test_it_says_whether_the_rows_are_those_of_the_threshold(sets: tuple) -> None:
    train, held_out, _ = sets
    assert "are those that the threshold was set on" in report_on(ood.Energy(), sets).summary[0]
    other = report_on(ood.Energy(), (train, held_out[:150], {}), held_out[150:])
    assert "was set on 150 ID rows; of 50 others" in other.summary[0]


@pytest.mark.parametrize(("shift", "word"), [(5.0, "fewer"), (-50.0, "more")])
def test_a_threshold_that_does_not_fit_is_to_be_set_again(sets: tuple, shift: float, word: str) -> None:
    train, held_out, outliers = sets
    detector = ood.Energy().fit(train)
    wrong = Threshold(calibrate(detector.score(held_out)).value + shift, 0.95, 1000)
    part = guard_part(detector, wrong, held_out, ood=outliers)
    assert re.match(rf"Set the threshold again .*, {word} than the 95 % it was set for", part.recommendation)


def test_a_detector_that_sees_nothing_is_not_recommended(sets: tuple) -> None:
    part = report_on(ood.Energy(), sets, ood={"same": sets[1][:80]})
    assert part.recommendation.startswith("Do not rely on this guard against inputs like same")


def test_without_ood_sets_and_training_rows_the_rest_is_there(sets: tuple, tmp_path: Path) -> None:
    alone = report_on(ood.DICE(p=0.5), sets)
    assert [each.heading for each in alone.sections] == ["Scores", "ID rows by predicted class", "Inputs to look at"]
    assert "--ood" in alone.recommendation
    write_report(tmp_path / "report.html", alone, report_on(ood.DICE(p=0.5), sets, ood=sets[2]))
    check_page(tmp_path / "report.html")


def test_nearest_training_rows_are_those_of_a_search_by_hand(sets: tuple) -> None:
    train, held_out, outliers = sets
    detector = ood.KNN(k=3)
    part = report_on(detector, sets, ood=outliers, train=train)
    card = section(part, "Inputs to look at")["galleries"][0]["inputs"][0]
    row = int(detector.score(held_out).argmin())
    assert card["name"] == f"id, row {row}"
    unit = torch.nn.functional.normalize
    near = (unit(train.embedding, dim=1) @ unit(held_out.embedding[row], dim=0)).topk(2).indices.tolist()
    assert [each["name"] for each in card["nearest"]] == [f"row {place}" for place in near]


def test_pictures_of_the_rows_and_of_their_neighbours(sets: tuple, tmp_path: Path) -> None:
    train, held_out, outliers = sets
    for name, count in (("train", len(train)), ("id", len(held_out))):
        for place in range(count):
            write_image(tmp_path / name / f"{place:04}.png", seed=place)
    images = {name: open_images(tmp_path / name) for name in ("train", "id")}
    detector = ood.KNN(k=3)
    part = report_on(detector, sets, ood=outliers, train=train, images=images)
    write_report(tmp_path / "report.html", part)
    shown = check_page(tmp_path / "report.html").all("img")
    assert 30 <= len(shown) <= 64
    first = part.sections[-1].galleries[0].inputs[0]
    assert first.picture is not None
    assert first.picture.alternative == f"small copy of {int(detector.score(held_out).argmin()):04}.png"
    with pytest.raises(ArgumentError, match="200 images, but the features of 'far' have 90 rows"):
        report_on(detector, sets, ood=outliers, images={"far": images["id"]})
    with pytest.raises(ArgumentError, match="belong to no features"):
        report_on(detector, sets, images={"far": images["id"]})


def test_rows_without_a_score_count_as_rejected(sets: tuple, tmp_path: Path) -> None:
    held_out = sets[1]
    broken = held_out.logits[:40].clone()
    broken[:10] = torch.nan
    odd = Features.unvalidated({"embedding": held_out.embedding[:40], "logits": broken}, held_out.head)
    part = report_on(ood.Energy(), sets, ood={"odd": odd})
    assert "10 rows have no finite score and count as rejected." in part.summary
    write_report(tmp_path / "report.html", part)
    check_page(tmp_path / "report.html")
    with pytest.raises(DataError, match="finite score"):
        report_on(ood.Energy(), sets, odd[:10])


def test_what_does_not_belong_together_is_refused(sets: tuple) -> None:
    with pytest.raises(ShapeError):
        report_on(ood.DICE(p=0.5), sets, features(50, 9), ood=sets[2])
    with pytest.raises(ArgumentError, match="choose another name"):
        report_on(ood.DICE(p=0.5), sets, ood={"id": sets[1]})
