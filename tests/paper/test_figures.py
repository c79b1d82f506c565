"""The paper's figures from small features: every file is written, readable, and contains the analysis's numbers."""

import csv
import xml.etree.ElementTree as ElementTree
from statistics import fmean

import numpy as np
import pytest
from PIL import Image
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


def experiment(classes=4, width=12):
    whole = example_features(300, width, classes, seed=0)
    ood = {
        name: Features(example_features(90, width, classes, seed=seed).embedding, head=whole.head)
        for name, seed in (("first", 1), ("second", 2))
    }
    return {"train": whole[:200], "test": whole[200:], **ood}


@pytest.fixture(scope="module")
def features():
    return experiment()


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
        picture.load()
        assert min(picture.size) > 400
        pixels = np.asarray(picture.convert("L"), dtype=float)
    assert 0.005 < (pixels < 250).mean() < 0.9
    # every quarter of the picture has something in it
    half = pixels.shape[0] // 2, pixels.shape[1] // 2
    for rows in (slice(None, half[0]), slice(half[0], None)):
        for columns in (slice(None, half[1]), slice(half[1], None)):
            assert pixels[rows, columns].std() > 1


@pytest.mark.parametrize("stem", STEMS)
def test_svg_files_are_xml_with_paths(drawn, stem):
    root = ElementTree.parse(drawn[0] / f"{stem}.svg").getroot()  # noqa: S314
    assert root.tag.endswith("}svg")
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


def test_contributions(drawn, parts):
    head, _, own, ood, _, order = parts
    rows = table(drawn[0] / "figure1-contributions.csv")
    assert [int(row["rank"]) for row in rows] == list(range(head.width))
    assert [int(row["unit"]) for row in rows] == order.tolist()
    for kind, part in (("id", own), ("ood", ood)):
        mean, variance = contribution_moments(head, moments(part), LABEL, order)
        np.testing.assert_array_equal(column(rows, f"{kind}_mean"), mean)
        np.testing.assert_array_equal(column(rows, f"{kind}_std"), np.sqrt(variance))


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
    head, id_moments, _, ood, _, order = parts
    rows = table(drawn[0] / "figure4-units.csv")
    assert [int(row["unit"]) for row in rows] == order.tolist()
    for kind, set_moments in (("id", id_moments), ("ood", moments(ood))):
        mean, variance = contribution_moments(head, set_moments, LABEL, order)
        np.testing.assert_array_equal(column(rows, f"{kind}_mean"), mean)
        np.testing.assert_array_equal(column(rows, f"{kind}_variance"), variance)
    assert np.all(np.diff(column(rows, "id_mean")) >= 0)


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


def test_the_first_ood_set_is_shown_unless_another_is_given(features, tmp_path):
    draw_figures(features, tmp_path, p=0.5)
    assert {row["set"] for row in table(tmp_path / "figure2-outputs.csv")} == {"id", "first"}


def test_without_labels_all_test_rows_are_used(features, tmp_path):
    bare = {**features, "test": Features(features["test"].embedding, head=features["test"].head)}
    draw_figures(bare, tmp_path, p=0.5)
    rows = table(tmp_path / "figure2-outputs.csv")
    assert sum(row["set"] == "id" for row in rows) == len(features["test"])


def test_a_class_of_which_nothing_is_kept(features, tmp_path):
    head, id_moments = features["train"].head, moments(features["train"])
    kept = dice_mask(head, id_moments, 0.97).sum(dim=1)
    label = int(kept.argmin())
    assert kept[label] == 0
    assert len(draw_figures(features, tmp_path, label=label, p=0.97)) == 16


def test_an_unknown_ood_set_is_refused_before_anything_is_written(features, tmp_path):
    with pytest.raises(ArgumentError, match="OOD set 'third' must be one of first, second"):
        draw_figures(features, tmp_path / "out", shown="third")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("label", [-1, 4, 99])
def test_a_label_that_is_not_a_class_is_refused_before_anything_is_written(features, tmp_path, label):
    with pytest.raises(ArgumentError, match=rf"label={label} must lie between 0 and 3 for 4 classes"):
        draw_figures(features, tmp_path / "out", label=label)
    assert not (tmp_path / "out").exists()


def test_a_p_that_is_not_a_fraction_and_features_without_a_head(features, tmp_path):
    with pytest.raises(ArgumentError, match="p is a fraction"):
        draw_figures(features, tmp_path / "out", p=90)
    bare = {**features, "train": Features(features["train"].embedding)}
    with pytest.raises(DataError, match="has no head"):
        draw_figures(bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Plots ------------------------------------------------------------------------------------------


def test_every_set_has_a_curve_however_many_there_are():
    curves = {f"set{k}": np.linspace(k, k + 1, 3) for k in range(9)}
    figure = plots.sparsity_sweep((0.0, 0.5, 0.9), curves, curves)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == [*curves, "average"]


def test_the_average_is_drawn():
    curves = {"a": np.array([10.0, 20.0]), "b": np.array([30.0, 60.0])}
    figure = plots.sparsity_sweep((0.0, 0.9), curves, curves)
    lines = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].get_lines()}
    assert lines == {"a": [10.0, 20.0], "b": [30.0, 60.0], "average": [20.0, 40.0]}


def test_the_selection_curve_marks_the_choice(tmp_path):
    figure = plots.selection_curve((0.1, 0.5, 0.9), np.array([70.0, 90.0, 80.0]), np.array([3.0, 1.0, 2.0]), chosen=0.5)
    for axis, value in zip(figure.axes, (90.0, 1.0), strict=True):
        mark = axis.get_lines()[1]
        assert (np.ravel(mark.get_xdata()).tolist(), np.ravel(mark.get_ydata()).tolist()) == ([1], [value])
    plots.save_figure(figure, tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        picture.load()
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_csv_keeps_every_digit_and_quotes_commas(tmp_path):
    write_csv(tmp_path / "t.csv", ("a", "b"), [(0.1 + 0.2, "x, y"), (np.float64(1 / 3), 2)])
    assert (tmp_path / "t.csv").read_text() == 'a,b\n0.30000000000000004,"x, y"\n0.3333333333333333,2\n'
