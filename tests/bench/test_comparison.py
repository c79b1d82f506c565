"""Tables of rows: grouping by run and seed, marking the best, and published numbers."""

from statistics import fmean, stdev

import pytest
from support.rows import cell, names, row

from oodles.bench.comparison import compare, overview, results, sweep_table
from oodles.bench.suites import SUITES
from oodles.paper.published import AVERAGE
from oodles.paper.sweep import SweepPoint


def test_seeds_and_runs_are_grouped_and_averaged_separately():
    values = {}
    rows = []
    for k, (run, seed) in enumerate([("one", 0), ("one", 1), ("two", 0), ("two", 1)]):
        spec = "random_k(0.9)+energy" if seed == 0 else f"random_k(0.9, seed={seed})+energy"
        for j, name in enumerate(("a", "b", "c")):
            values[run, seed, name] = (k + 1) * (j + 2) / 50
            rows.append(row(spec, name, values[run, seed, name], 1 - values[run, seed, name], run=run))
    grouped = results(rows)
    assert list(grouped) == [("random_k(0.9)+energy", name) for name in ("a", "b", "c", AVERAGE)]
    for name in "abc":
        expected = [100 * value for (_, _, other), value in values.items() if other == name]
        assert grouped["random_k(0.9)+energy", name].values("fpr95") == pytest.approx(expected)
    averages = [100 * fmean(values[run, seed, name] for name in "abc") for run in ("one", "two") for seed in (0, 1)]
    average = grouped["random_k(0.9)+energy", AVERAGE]
    assert average.values("fpr95") == pytest.approx(averages)
    assert average.values("auroc") == pytest.approx([100 - value for value in averages])
    assert cell(compare(rows), "random_k(0.9)", AVERAGE)[0] == (
        f"{fmean(averages):.1f}±{stdev(averages):.1f}",
        f"{100 - fmean(averages):.1f}±{stdev(averages):.1f}",
    )


def test_the_same_row_twice_counts_once():
    grouped = results([row("msp", "a", 0.1), row("msp", "a", 0.1), row("msp", "a", 0.3, run="two")])
    assert grouped["msp", "a"].values("fpr95") == pytest.approx((10.0, 30.0))


def test_detectors_that_differ_in_more_than_a_seed_are_not_grouped():
    grouped = results([row("random_k(0.9, seed=1)+energy", "a"), row("random_k(0.7, seed=1)+energy", "a")])
    assert {key[0] for key in grouped} == {"random_k(0.9)+energy", "random_k(0.7)+energy"}


def test_the_best_of_each_column_is_marked_ties_included():
    rows = [row("x", "a", 0.10, 0.90), row("y+energy", "a", 0.1004, 0.9504), row("z", "a", 0.2, 0.95)]
    rows += [row("x", "b", 0.3, 0.6), row("y+energy", "b", 0.2, 0.5), row("z", "b", 0.1, 0.4)]
    table = compare(rows, title="T")
    assert (table.title, names(table)) == ("T", ["a", "b", AVERAGE])
    assert [label for label, _ in table.lines()] == ["x", "y", "z"], "the default score is not named"
    # values that print the same tie: 10.0 and 10.04 are both 10.0, 95.04 and 95 both 95.0
    assert [cell(table, label, "a")[1] for label in "xyz"] == [(True, False), (True, True), (False, True)]
    assert [cell(table, label, "b")[1] for label in "xyz"] == [(False, True), (False, False), (True, False)]
    assert cell(table, "x", AVERAGE)[0] == ("20.0", "75.0")
    assert not any(shown.notes for _, cells in table.lines() for shown in cells)


def test_intervals_are_shown_for_a_single_run():
    ends = {"fpr95": (0.1, 0.255), "auroc": (0.5, 0.75)}
    table = compare([row("msp", "a", intervals=ends), row("msp", "b", intervals=ends)])
    assert cell(table, "msp", "a")[2] == ["[10.0, 25.5]/[50.0, 75.0]"]
    assert cell(table, "msp", AVERAGE)[2] == []
    two = compare([row("msp", "a", intervals=ends, run=run) for run in ("one", "two")])
    assert cell(two, "msp", "a")[2] == []


def test_the_papers_numbers_and_the_differences():
    table = compare([row("msp", "svhn", 0.5, 0.9), row("dice(0.9)+energy", "svhn", 0.2)], paper="cifar10")
    assert cell(table, "msp", "svhn")[2] == ["(47.2/93.5)", "+2.8/-3.5"]
    # an average over other sets is quoted without a difference
    assert cell(table, "msp", AVERAGE)[2] == ["(48.7/92.5)"]
    assert "its average is over other sets" in table.caption
    whole = compare([row("msp", name, 0.5, 0.9) for name in SUITES["cifar10"].ood], paper="cifar10")
    assert cell(whole, "msp", AVERAGE)[2] == ["(48.7/92.5)", "+1.3/-2.5"]
    assert "other sets" not in whole.caption
    one = compare([row("dice(0.9)+msp", "svhn", 0.5), row("max_logit", "svhn")], paper="cifar10")
    assert cell(one, "dice(0.9)+msp", "svhn")[2] == ["(45.9)", "+4.1"]
    assert cell(one, "max_logit", "svhn")[2] == []
    assert "paper" not in compare([row("msp", "svhn")]).caption


def test_the_overview_has_one_line_per_detector():
    intervals = {"fpr95": (0.0, 0.2), "auroc": (0.7, 0.9)}
    rows = [row("msp", name, fpr, intervals=intervals) for name, fpr in (("a", 0.1), ("b", 0.2))]
    table = overview([*rows, row("knn", "a", 0.3, 0.9)])
    assert names(table) == [AVERAGE, "a", "b"]
    assert [cell(table, "msp", name) for name in names(table)] == [
        (("15.0", "80.0"), (True, False), []),
        (("10.0",), (True,), []),
        (("20.0",), (True,), []),
    ]
    assert [cell(table, "knn", name)[0] for name in names(table)] == [("30.0", "90.0"), ("30.0",), ("-",)]


def points():
    return [
        SweepPoint(
            p,
            [row(f"dice({p})+energy", name, value, 1 - value, run=run) for name, value in (("a", 0.2), ("b", q))],
            accuracy,
            {"a": 0.5, "b": 0.25},
            {"a": 3.0, "b": gap},
        )
        for p, q, accuracy, gap, run in (
            (0.0, 0.4, 0.9, 5.0, "one"),
            (0.9, 0.1, 0.8, 6.0, "one"),
            (0.0, 0.6, 0.8, 7.0, "two"),
            (0.9, 0.3, 0.6, 8.0, "two"),
        )
    ]


def test_the_sweep_shows_averages_over_sets_and_runs_beside_the_papers():
    table = sweep_table(points())
    assert names(table) == ["FPR95", "AUROC", "accuracy", "spread", "gap"]
    texts = {label: [each.numbers[0][0] for each in shown] for label, shown in table.lines()}
    assert texts == {
        "p=0": ["35.00", "65.00", "85.00", "0.375", "4.50"],
        "p=0.9": ["20.00", "80.00", "70.00", "0.375", "5.00"],
    }
    notes = {
        paper: {label: [each.notes for each in shown] for label, shown in sweep_table(points(), paper=paper).lines()}
        for paper in (None, "cifar10", "cifar100")
    }
    assert notes[None]["p=0"] == [[]] * 5
    assert notes["cifar10"]["p=0"] == [["(26.55)"], ["(94.57)"], ["(94.50)"], [], []]
    assert notes["cifar100"]["p=0.9"] == [[], [], [], [], ["(7.92)"]]
    (point, *_) = points()
    unlabelled = sweep_table([SweepPoint(point.p, point.rows, None, point.spread, point.gap)])
    assert cell(unlabelled, "p=0", "accuracy")[0] == ("-",)
