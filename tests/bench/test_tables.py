"""Every rendering of a table, and rows as CSV and JSON."""

import csv
import io
import json
import re
from dataclasses import fields

import pytest
from rich.console import Console
from support.rows import names, row

from oodles.bench.comparison import compare
from oodles.bench.tables import Cell, Column, Table, html, latex, markdown, print_table, rows_csv, rows_json
from oodles.metrics import Row
from oodles.paper.published import AVERAGE


def printed(table, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_table(console, table)
    return console.file.getvalue()


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
    headings = [word for line in body.splitlines() for word in line.split() if word in names(view)]
    assert headings == names(view)
    for label, cells in view.lines():
        assert label in body
        for each in cells:
            assert all(part in text for part in (*(number for number, _ in each.numbers), *each.notes))
    assert text.count("Everything") == 1
    assert " ".join(view.caption.split()) in " ".join(text.split())


def test_a_wide_terminal_shows_one_table():
    lines = printed(wide_view(), 200).splitlines()
    assert sum("svhn" in line or AVERAGE in line for line in lines) == 1
    assert "…" not in printed(wide_view(), 40), "nor is anything cut off on a narrow one"


def test_the_best_is_bold_on_a_terminal():
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    print_table(console, compare([row("x", "a", 0.1, 0.5), row("y", "a", 0.2, 0.6)]))
    assert re.search(r"\x1b\[1m10\.0\x1b\[0m/50\.0", console.file.getvalue())


@pytest.mark.parametrize("name", ["[bold]x", "[/red]y", "a[dim]b", "back\\[slash]"])
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
    assert len(table) == 2 + len(view.rows)
    assert {len(split_line(line)) for line in table} == {1 + len(names(view))}
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
    assert len(rows) == 1 + len(view.rows)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(names(view))}
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
    columns = [field.name for field in fields(Row) if field.name != "intervals"]
    assert list(read[0]) == [*columns, "fpr95_low", "fpr95_high", "auroc_low", "auroc_high"]
    for got, wanted in zip(read, rows, strict=True):
        for name in columns:
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


def test_html():
    line = (Cell("<b>"), Cell(-1.25, (-2, 0.5), published=3.0, best=True), Cell(None), Cell(1234), Cell("text"))
    columns = Column("name"), Column("x", ".2f"), Column("y"), Column("n", ",d"), Column("&")
    table = Table("A < B", columns, (line,))
    text = html(table)
    assert '<th scope="col">name</th>' in text
    assert '<th scope="row">&lt;b&gt;</th>' in text
    assert '<td class="number"><strong>-1.25</strong><small>[-2.00, 0.50]</small><small>(3.00)</small></td>' in text
    assert '<td class="number">-</td>\n<td class="number">1,234</td>\n<td>text</td>' in text
    assert '<th scope="col">&amp;</th>' in text
    assert "<span>A &lt; B</span>" in text
    x = {"value": -1.25, "interval": (-2, 0.5), "published": 3.0}
    assert table.as_json()["rows"] == [{"name": "<b>", "x": x, "y": None, "n": 1234, "&": "text"}]
