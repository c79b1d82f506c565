"""The paper's figures from small features: every file is written, readable, and contains the analysis's numbers."""

import csv
import xml.etree.ElementTree as ElementTree
from collections import Counter
from statistics import fmean

import numpy as np
import pytest
from PIL import Image
from support.experiment import ood_features
from support.networks import one_thread  # noqa: F401

from oodles import plots
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.paper.analysis import (
    class_outputs,
    contribution_covariance,
    contribution_moments,
    dice_mask,
    drop_lowest,
    id_order,
    moments,
    variances,
)
from oodles.paper.figures import draw_figures, variance_summary, write_csv
from oodles.paper.sweep import SWEEP_GRID, sweep
from oodles.testing import example_features

STEMS = ("figure1-contributions", "figure2-outputs", "figure3-sweep", "figure4-units", "covariance")
LABEL, P = 2, 0.7


@pytest.fixture(scope="module")
def features():
    whole = example_features(300, 12, 4, seed=0)
    ood = {name: ood_features(whole.head, seed, 90) for name, seed in (("first", 1), ("second", 2))}
    return {"train": whole[:200], "test": whole[200:], **ood}


@pytest.fixture(scope="module")
def drawn(features, tmp_path_factory):
    out = tmp_path_factory.mktemp("figures") / "deep" / "inside"
    return out, draw_figures(features, out, label=LABEL, p=P, shown="second")


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


# Files ------------------------------------------------------------------------------------------


def test_every_file_is_written_and_named(drawn):
    out, written = drawn
    assert [path.name for path in written] == [
        *(f"{stem}{suffix}" for stem in STEMS for suffix in (".png", ".svg", ".csv")),
        "variances.csv",
    ]
    assert sorted(written) == sorted(out.iterdir()), "and nothing else"


@pytest.mark.parametrize("stem", STEMS)
def test_pictures_open_and_are_not_blank(drawn, stem):
    with Image.open(drawn[0] / f"{stem}.png") as picture:
        pixels = np.asarray(picture.convert("L"), dtype=float)
    assert min(pixels.shape) > 400
    assert 0.005 < (pixels < 250).mean() < 0.9
    quarters = [part for half in np.array_split(pixels, 2) for part in np.array_split(half, 2, axis=1)]
    assert all(part.std() > 1 for part in quarters), "every quarter of the picture has something in it"
    root = ElementTree.parse(drawn[0] / f"{stem}.svg").getroot()  # noqa: S314
    assert len([node for node in root.iter() if node.tag.endswith(("}path", "}image"))]) > 10


def test_two_runs_give_the_same_bytes(features, drawn, tmp_path):
    again = draw_figures(features, tmp_path, label=LABEL, p=P, shown="second")
    differing = [
        path.name
        for path, other in zip(drawn[1], again, strict=True)
        if path.suffix in (".csv", ".svg") and path.read_bytes() != other.read_bytes()
    ]
    assert differing == []


# Numbers ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(features):
    """Head, ID moments, test images of the class, OOD images, DICE's mask and the order of the units."""
    head = features["train"].head
    id_moments = moments(features["train"])
    own = features["test"][features["test"].labels.eq(LABEL)]
    return head, id_moments, own, features["second"], dice_mask(head, id_moments, P), id_order(head, id_moments, LABEL)


def test_outputs(drawn, parts):
    head, _, own, ood, mask, _ = parts
    rows = table(drawn[0] / "figure2-outputs.csv")
    for name, part in (("id", own), ("second", ood)):
        of_set = [row for row in rows if row["set"] == name]
        dense, sparse = class_outputs(head, mask, part, LABEL)
        np.testing.assert_array_equal(column(of_set, "dense"), dense)
        np.testing.assert_array_equal(column(of_set, "sparse"), sparse)
    assert len(rows) == len(own) + len(ood)


def test_the_sweep(drawn, features):
    rows = table(drawn[0] / "figure3-sweep.csv")
    ood = {name: features[name] for name in ("first", "second")}
    points = sweep(SWEEP_GRID, train=features["train"], test=features["test"], ood=ood)
    wanted = [
        (point.p, row.ood_set, row.fpr95, row.auroc, point.accuracy, point.spread[row.ood_set], point.gap[row.ood_set])
        for point in points
        for row in point.rows
    ]
    read = [
        (float(row["p"]), row["set"], *(float(row[name]) for name in ("fpr95", "auroc", "accuracy", "spread", "gap")))
        for row in rows
    ]
    assert read == wanted


def test_units(drawn, parts):
    head, id_moments, own, ood, _, order = parts
    ood_moments = moments(ood)
    for stem, id_part, kinds in (
        ("figure1-contributions", moments(own), ("mean", "std")),
        ("figure4-units", id_moments, ("mean", "variance")),
    ):
        rows = table(drawn[0] / f"{stem}.csv")
        assert [(int(row["rank"]), int(row["unit"])) for row in rows] == list(enumerate(order.tolist()))
        for side, part in (("id", id_part), ("ood", ood_moments)):
            mean, variance = contribution_moments(head, part, LABEL, order)
            known = {"mean": mean, "variance": variance, "std": np.sqrt(variance)}
            for kind in kinds:
                np.testing.assert_array_equal(column(rows, f"{side}_{kind}"), known[kind])


def test_the_covariance(drawn, parts):
    head, _, _, ood, _, order = parts
    rows = table(drawn[0] / "covariance.csv")
    assert list(rows[0]) == [f"unit{unit}" for unit in order.tolist()]
    matrix = np.array([[float(value) for value in row.values()] for row in rows])
    np.testing.assert_array_equal(matrix, contribution_covariance(head, moments(ood), LABEL, order))


def test_the_variances_of_every_class_and_set(drawn, features, parts):
    head, id_moments, _, _, mask, _ = parts
    rows = table(drawn[0] / "variances.csv")
    rules = {"dice": mask, "lowest units": drop_lowest(head, id_moments, int(P * head.width))}
    assert len(rows) == 3 * 2 * head.classes
    for name in ("test", "first", "second"):
        for rule, chosen in rules.items():
            matching = [row for row in rows if (row["set"], row["rule"]) == (name, rule)]
            found = variances(head, chosen, features[name])
            assert [int(row["class"]) for row in matching] == list(range(head.classes))
            for heading, values in (
                ("variance", found.direct_full),
                ("variance_kept", found.direct_kept),
                ("ratio", found.ratio),
                ("independent", found.independent),
                ("correlated", found.correlated),
            ):
                np.testing.assert_array_equal(column(matching, heading), values)


def test_the_summary(features, parts):
    head, _, _, _, mask, _ = parts
    summary = variance_summary(features, P)
    assert [name for name, *_ in summary] == ["test", "first", "second"]
    for name, low, mean, high, above in summary:
        ratio = variances(head, mask, features[name]).ratio
        assert (low, mean, high, above) == (ratio.min(), fmean(ratio), ratio.max(), (ratio > 1).sum())


# Choices and errors -----------------------------------------------------------------------------


def test_the_first_ood_set_is_shown_and_without_labels_all_test_rows(features, tmp_path):
    bare = {**features, "test": Features(features["test"].embedding, head=features["test"].head)}
    draw_figures(bare, tmp_path, p=0.5)
    rows = table(tmp_path / "figure2-outputs.csv")
    shown = Counter(row["set"] for row in rows)
    assert shown == {"id": len(features["test"]), "first": len(features["first"])}


def test_a_class_of_which_nothing_is_kept(features, tmp_path):
    head, id_moments = features["train"].head, moments(features["train"])
    kept = dice_mask(head, id_moments, 0.97).sum(dim=1)
    label = int(kept.argmin())
    assert kept[label] == 0
    assert len(draw_figures(features, tmp_path, label=label, p=0.97)) == 16


def test_what_cannot_be_drawn_is_refused_before_anything_is_written(features, tmp_path):
    bare = {**features, "train": Features(features["train"].embedding)}
    for parts, options, kind, message in (
        (features, {"shown": "third"}, ArgumentError, "OOD set 'third' must be one of first, second"),
        (features, {"label": -1}, ArgumentError, "label=-1 must lie between 0 and 3"),
        (features, {"label": 4}, ArgumentError, "label=4 must lie between 0 and 3"),
        (features, {"p": 90}, ArgumentError, "p is a fraction"),
        (bare, {}, DataError, "has no head"),
    ):
        with pytest.raises(kind, match=message):
            draw_figures(parts, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def test_curves_over_p_have_a_line_for_every_set_the_average_and_the_choice():
    curves = {f"set{k}": np.array([k, 2.0 * k]) for k in range(9)}
    figure = plots.curves_over_p((0.1, 0.9), {"FPR95 (%)": curves, "AUROC (%)": {"one": np.ones(2)}}, chosen=0.9)
    several, alone = ({line.get_label(): line for line in axis.get_lines()} for axis in figure.axes)
    assert list(several) == [*curves, "average", "p = 0.9"], "however many sets there are"
    assert several["average"].get_ydata().tolist() == [4.0, 8.0]
    assert several["p = 0.9"].get_xdata() == [1, 1]
    assert list(alone) == ["one", "p = 0.9"]


def test_csv_keeps_every_digit_and_quotes_commas(tmp_path):
    write_csv(tmp_path / "t.csv", ("a", "b"), [(0.1 + 0.2, "x, y"), (np.float64(1 / 3), 2)])
    assert (tmp_path / "t.csv").read_text() == 'a,b\n0.30000000000000004,"x, y"\n0.3333333333333333,2\n'
