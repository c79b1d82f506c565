"""Views of rows: grouping, marking the best, and every rendering."""

import csv
import io
import json
import re
from dataclasses import fields
from statistics import fmean, stdev

import pytest
from rich.console import Console

from oodles.bench.suites import SUITES
from oodles.bench.tables import (
    Cell,
    View,
    compare,
    latex,
    markdown,
    overview,
    print_view,
    results,
    rows_csv,
    rows_json,
    sweep_view,
    write_text,
)
from oodles.metrics import Row
from oodles.paper.published import AVERAGE
from oodles.paper.sweep import SweepPoint


def row(detector, ood_set, fpr95=0.5, auroc=0.8, **more):
    return Row(detector, "id", ood_set, 100, 50, fpr95, auroc, 0.7, 0.6, 0.2, 0.55, **more)


def cell(view, label, column):
    return dict(view.lines)[label][view.columns.index(column)]


def printed(view, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_view(console, view)
    return console.file.getvalue()


# Grouping ---------------------------------------------------------------------------------------


def test_one_run_is_given_in_percent():
    grouped = results([row("msp", "a", 0.25, 0.5), row("msp", "b", 0.75, 1.0)])
    assert list(grouped) == [("msp", "a"), ("msp", "b"), ("msp", AVERAGE)]
    assert (grouped["msp", "a"].fpr95, grouped["msp", "a"].auroc) == ((25.0,), (50.0,))
    assert (grouped["msp", AVERAGE].fpr95, grouped["msp", AVERAGE].auroc) == ((50.0,), (75.0,))


def test_seeds_and_runs_are_grouped_and_averaged_separately():
    values = {}
    rows = []
    for k, (run, seed) in enumerate([("one", 0), ("one", 1), ("two", 0), ("two", 1)]):
        spec = "random_k(0.9)+energy" if seed == 0 else f"random_k(0.9, seed={seed})+energy"
        for j, name in enumerate(("a", "b", "c")):
            values[run, seed, name] = (k + 1) * (j + 2) / 50
            rows.append(row(spec, name, values[run, seed, name], 1 - values[run, seed, name], run=run))
    grouped = results(rows)
    assert {key[0] for key in grouped} == {"random_k(0.9)+energy"}
    for name in "abc":
        expected = [100 * value for (_, _, other), value in values.items() if other == name]
        assert grouped["random_k(0.9)+energy", name].fpr95 == pytest.approx(expected)
    averages = [100 * fmean(values[run, seed, name] for name in "abc") for run in ("one", "two") for seed in (0, 1)]
    average = grouped["random_k(0.9)+energy", AVERAGE]
    assert average.fpr95 == pytest.approx(averages)
    assert average.auroc == pytest.approx([100 - value for value in averages])
    shown = cell(compare(rows), "random_k(0.9)", AVERAGE).numbers
    assert shown[0] == f"{fmean(averages):.1f}±{stdev(averages):.1f}"
    assert shown[1] == f"{100 - fmean(averages):.1f}±{stdev(averages):.1f}"


def test_the_same_row_twice_counts_once():
    grouped = results([row("msp", "a", 0.1), row("msp", "a", 0.1), row("msp", "a", 0.3, run="two")])
    assert grouped["msp", "a"].fpr95 == pytest.approx((10.0, 30.0))


def test_detectors_that_differ_in_more_than_a_seed_are_not_grouped():
    grouped = results([row("random_k(0.9, seed=1)+energy", "a"), row("random_k(0.7, seed=1)+energy", "a")])
    assert {key[0] for key in grouped} == {"random_k(0.9)+energy", "random_k(0.7)+energy"}


# Comparing --------------------------------------------------------------------------------------


def test_the_best_of_each_column_is_marked_ties_included():
    rows = [
        row("x", "a", 0.10, 0.90),
        row("y", "a", 0.1004, 0.9504),
        row("z", "a", 0.2, 0.95),
        row("x", "b", 0.3, 0.6),
        row("y", "b", 0.2, 0.5),
        row("z", "b", 0.1, 0.4),
    ]
    view = compare(rows, title="T")
    assert view.title == "T"
    assert view.columns == ("a", "b", AVERAGE)
    assert [label for label, _ in view.lines] == ["x", "y", "z"]
    best = {(label, column): cell(view, label, column).best for label in "xyz" for column in view.columns}
    # values that print the same tie: 10.0 and 10.04 are both 10.0, 95.04 and 95 both 95.0
    assert [best[label, "a"] for label in "xyz"] == [(True, False), (True, True), (False, True)]
    assert [best[label, "b"] for label in "xyz"] == [(False, True), (False, False), (True, False)]
    assert cell(view, "x", AVERAGE).numbers == ("20.0", "75.0")
    assert all(not cell.notes for _, cells in view.lines for cell in cells)


def test_the_default_score_is_left_out_of_labels():
    view = compare([row("dice(0.9)+energy", "a"), row("energy", "a"), row("dice(0.9)+msp", "a")])
    assert [label for label, _ in view.lines] == ["dice(0.9)", "energy", "dice(0.9)+msp"]


def test_intervals_are_shown_for_a_single_run():
    ends = {"fpr95": (0.1, 0.255), "auroc": (0.5, 0.75)}
    view = compare([row("msp", "a", intervals=ends), row("msp", "b", intervals=ends)])
    assert cell(view, "msp", "a").notes == ("[10.0, 25.5]/[50.0, 75.0]",)
    assert cell(view, "msp", AVERAGE).notes == ()
    two = compare([row("msp", "a", intervals=ends, run=run) for run in ("one", "two")])
    assert cell(two, "msp", "a").notes == ()


def test_the_papers_numbers_and_the_differences():
    view = compare([row("msp", "svhn", 0.5, 0.9), row("dice(0.9)+energy", "svhn", 0.2)], paper="cifar10")
    assert cell(view, "msp", "svhn").notes == ("(47.2/93.5)", "+2.8/-3.5")
    # an average over other sets is quoted without a difference
    assert cell(view, "msp", AVERAGE).notes == ("(48.7/92.5)",)
    assert "its average is over other sets" in view.caption
    whole = compare([row("msp", name, 0.5, 0.9) for name in SUITES["cifar10"].ood], paper="cifar10")
    assert cell(whole, "msp", AVERAGE).notes == ("(48.7/92.5)", "+1.3/-2.5")
    assert "other sets" not in whole.caption
    one = compare([row("dice(0.9)+msp", "svhn", 0.5)], paper="cifar10")
    assert cell(one, "dice(0.9)+msp", "svhn").notes == ("(45.9)", "+4.1")
    none = compare([row("max_logit", "svhn"), row("msp", "elsewhere")][:1], paper="cifar10")
    assert cell(none, "max_logit", "svhn").notes == ()
    assert "paper" not in compare([row("msp", "svhn")]).caption


def test_the_overview_has_one_line_per_detector():
    intervals = {"fpr95": (0.0, 0.2), "auroc": (0.7, 0.9)}
    rows = [row("msp", name, fpr, intervals=intervals) for name, fpr in (("a", 0.1), ("b", 0.2))]
    view = overview([*rows, row("knn", "a", 0.3, 0.9)], title="T")
    assert (view.columns, view.title) == ((AVERAGE, "a", "b"), "T")
    assert [one.numbers for one in dict(view.lines)["msp"]] == [("15.0", "80.0"), ("10.0",), ("20.0",)]
    assert [one.numbers for one in dict(view.lines)["knn"]] == [("30.0", "90.0"), ("30.0",), ("-",)]
    assert [one.best for one in dict(view.lines)["msp"]] == [(True, False), (True,), (True,)]
    lines = printed(view, 80).splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["msp", "knn"], "without intervals, which need a second line"


def points():
    return [
        SweepPoint(
            p,
            tuple(row(f"dice({p})+energy", name, value, 1 - value, run=run) for name, value in (("a", 0.2), ("b", q))),
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


def test_the_sweep_shows_averages_over_sets_and_runs():
    view = sweep_view(points(), title="S")
    assert view.columns == ("FPR95", "AUROC", "accuracy", "spread", "gap")
    texts = {label: [one.numbers[0] for one in cells] for label, cells in view.lines}
    assert texts == {
        "p=0": ["35.00", "65.00", "85.00", "0.375", "4.50"],
        "p=0.9": ["20.00", "80.00", "70.00", "0.375", "5.00"],
    }
    assert not any(any(one.best) or one.notes for _, cells in view.lines for one in cells)


def test_the_papers_sweep_is_quoted():
    cifar10 = sweep_view(points(), paper="cifar10")
    assert [one.notes for one in dict(cifar10.lines)["p=0"]] == [("(26.55)",), ("(94.57)",), ("(94.50)",), (), ()]
    cifar100 = sweep_view(points(), paper="cifar100")
    assert [one.notes for one in dict(cifar100.lines)["p=0.9"]] == [(), (), (), (), ("(7.92)",)]


def test_a_sweep_without_labels_has_no_accuracy():
    (point, *_) = points()
    view = sweep_view([SweepPoint(point.p, point.rows, None, point.spread, point.gap)], paper="cifar10")
    assert view.lines[0][1][2].numbers == ("-",)


# On the terminal --------------------------------------------------------------------------------


def wide_view(paper=None):
    sets = ("svhn", "lsun_crop", "textures", "places365")
    specs = ("msp", "dice(0.9)+energy", "react(threshold=1.0)+dice(0.1)+energy", "unit_dropout(0.9)+energy")
    rows = []
    for k, spec in enumerate(specs):
        for j, name in enumerate(sets):
            for run in ("one", "two"):
                value = (11 * k + 7 * j + 3 * (run == "two") + 1) / 100
                rows.append(row(spec, name, value, 1 - value, run=run))
    return compare(rows, title="Everything", paper=paper)


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("paper", [None, "cifar10"])
def test_nothing_is_cut_off_and_every_column_is_there_once(width, paper):
    view = wide_view(paper)
    text = printed(view, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    body = text[: text.index("FPR95 / AUROC")]
    headings = [word for line in body.splitlines() for word in line.split() if word in view.columns]
    assert headings == list(view.columns)
    for label, _ in view.lines:
        assert label in body
    for one in {part for _, cells in view.lines for each in cells for part in (*each.numbers, *each.notes)}:
        assert one in text
    assert text.count("Everything") == 1
    assert " ".join(view.caption.split()) in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 45, 50])
def test_nothing_is_cut_off_on_a_narrow_terminal(width):
    text = printed(wide_view(), width)
    assert "…" not in text


def test_a_wide_terminal_shows_one_table():
    view = wide_view()
    assert sum("svhn" in line or AVERAGE in line for line in printed(view, 200).splitlines()) == 1


def test_the_best_is_bold_on_a_terminal():
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    print_view(console, compare([row("x", "a", 0.1, 0.5), row("y", "a", 0.2, 0.6)]))
    assert re.search(r"\x1b\[1m10\.0\x1b\[0m/50\.0", console.file.getvalue())


MARKUP = ["[bold]x", "[/red]y", "a[dim]b", "back\\[slash]"]


@pytest.mark.parametrize("name", MARKUP)
def test_brackets_in_a_name_are_printed_literally(name):
    by_detector = printed(compare([row(name, "a"), row("msp", "a")], title=f"of {name}"), 100)
    assert name in by_detector.split("─")[-1]
    assert f"of {name}" in by_detector
    assert name in printed(compare([row("msp", name)]), 100)


# Markdown, LaTeX, CSV, JSON ---------------------------------------------------------------------


def split_line(line):
    """The cells of one line of a Markdown table; an escaped bar is text."""
    assert line.startswith("|")
    assert line.endswith("|")
    return [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown():
    view = compare([row("x_y", "a", 0.1, 0.5), row("z", "a", 0.2, 0.6)], paper=None)
    lines = markdown(view).splitlines()
    assert split_line(lines[0]) == ["", "a", AVERAGE]
    assert set(lines[1]) == {"|", "-"}
    assert split_line(lines[2]) == ["x_y", "**10.0** / 50.0", "**10.0** / 50.0"]
    assert split_line(lines[3]) == ["z", "20.0 / **60.0**", "20.0 / **60.0**"]
    assert lines[-1] == f"*{view.caption}.*"


def test_markdown_has_the_same_number_of_cells_in_every_line():
    view = wide_view("cifar10")
    table = [line for line in markdown(view).splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(view.lines)
    assert {len(split_line(line)) for line in table} == {1 + len(view.columns)}
    assert "<br>(47.2/93.5)<br>" in table[2]


@pytest.mark.parametrize("name", ["a|b", "|", "x||y"])
def test_a_bar_in_a_name_does_not_break_a_markdown_table(name):
    for view in (compare([row("msp", name), row("msp", "c")]), compare([row(name, "b"), row(name, "c")])):
        table = [line for line in markdown(view).splitlines() if line.startswith("|")]
        assert {len(split_line(line)) for line in table} == {3 + 1}


def test_latex():
    view = compare([row("unit_dropout(0.9)", "lsun_crop", 0.1, run=run) for run in "ab"], title="T")
    text = latex(view)
    assert text.startswith("% FPR95")
    lines = text.splitlines()[1:]
    assert lines[:2] == [r"\begin{tabular}{lrr}", r"\toprule"]
    assert lines[2] == r" & lsun\_crop & average \\"
    assert lines[3] == r"\midrule"
    number = r"\textbf{10.0$\pm$0.0} / \textbf{80.0$\pm$0.0}"
    assert lines[4] == rf"unit\_dropout(0.9) & {number} & {number} \\"
    assert lines[5:] == [r"\bottomrule", r"\end{tabular}"]


@pytest.mark.parametrize("paper", [None, "cifar10"])
def test_latex_is_balanced(paper):
    view = wide_view(paper)
    text = latex(view)
    body = text.split("\n", 1)[1]
    depth = 0
    for mark in re.findall(r"(?<!\\)[{}]", body):
        depth += 1 if mark == "{" else -1
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
    assert not re.search(r"(?<!\\)[_%#]", body)
    assert "±" not in body
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(view.lines)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(view.columns)}
    assert body.count(r"\begin{tabular}") == body.count(r"\end{tabular}") == 1


# LaTeX's special characters, and their escaped forms
SPECIAL = re.compile(r"[&%_#${}^~\\]")
ESCAPED = re.compile(r"\\[&%_#${}]|\\[\^~]\{\}|\\text[a-z]+\{\}")


@pytest.mark.parametrize("name", ["a&b", "50%", "a_b", "c#", "$x$", "{y", "x^2", "a~b", "back\\slash"])
def test_names_are_escaped_in_latex(name):
    heading = latex(compare([row("msp", name)])).splitlines()[3]
    label = latex(compare([row(name, "a")])).splitlines()[5]
    for text in (heading.removeprefix(" & ").partition(" & ")[0], label.partition(" & ")[0]):
        assert text[0] == name[0] or text[0] == "\\"
        assert not SPECIAL.search(ESCAPED.sub("", text)), text


def a_few_rows():
    ends = {"fpr95": (0.1, 1 / 3), "auroc": (0.2, 0.3)}
    return [
        row("msp", "a", 1 / 3, 2 / 3, run="one"),
        row("react(90)+dice(0.9)+energy", 'b, "quoted"\nand broken', 0.1 + 0.2, intervals=ends),
        row("random_k(0.9, seed=3)+energy", "ü|ø", 1e-17, 1.0),
    ]


def test_csv_reads_back_to_the_same_numbers():
    rows = a_few_rows()
    read = list(csv.DictReader(io.StringIO(rows_csv(rows))))
    names = [field.name for field in fields(Row) if field.name != "intervals"]
    assert list(read[0]) == [*names, "auroc_low", "auroc_high", "fpr95_low", "fpr95_high"]
    for got, wanted in zip(read, rows, strict=True):
        for name in names:
            value = getattr(wanted, name)
            assert type(value)(got[name]) == value, name
        for name in ("auroc", "fpr95"):
            ends = [got[f"{name}_low"], got[f"{name}_high"]]
            assert (tuple(map(float, ends)) if ends[0] else None) == wanted.intervals.get(name)


def test_csv_without_intervals_has_no_columns_for_them():
    header, line = rows_csv([row("msp", "a")]).splitlines()
    assert header.split(",") == [field.name for field in fields(Row) if field.name != "intervals"]
    assert len(line.split(",")) == len(header.split(","))


def test_json_reads_back_to_the_same_rows():
    rows = a_few_rows()
    read = json.loads(rows_json(rows))
    for one in read:
        one["intervals"] = {name: tuple(ends) for name, ends in one["intervals"].items()}
    assert [Row(**one) for one in read] == rows
    assert json.loads(rows_json([])) == []


def test_texts_are_written_atomically(tmp_path):
    write_text(tmp_path / "deep" / "t.md", "± one\n")
    assert (tmp_path / "deep" / "t.md").read_text(encoding="utf-8") == "± one\n"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["t.md"]


def test_a_view_with_a_single_cell_prints():
    view = View("", "nothing", ("c",), (("label", (Cell(("1.0",), (False,)),)),))
    assert "1.0" in printed(view, 40)
