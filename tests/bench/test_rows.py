"""``Rows``: a list that shows itself as a table, in notebooks too, and becomes a DataFrame."""

import sys

import pandas as pd
import pytest
from support.experiment import experiment
from support.pages import Page

from oodles.bench import Rows, benchmark
from oodles.errors import MissingPackageError
from oodles.metrics import evaluate


def two_rows(detector="msp", ood_set="noise"):
    better = evaluate([2.0, 3.0], [0.0, 1.0], detector="knn", ood_set=ood_set)
    return Rows([evaluate([2.0, 3.0], [0.0, 2.5], detector=detector, ood_set=ood_set), better])


def test_a_benchmark_returns_rows_which_are_a_list():
    rows = benchmark(["msp", "energy"], **experiment())
    assert isinstance(rows, Rows)
    assert isinstance(rows, list)
    assert [row.detector for row in rows] == ["msp", "msp", "energy", "energy"]


def test_rows_print_as_a_table():
    lines = repr(two_rows()).splitlines()
    assert lines[0].split() == ["average", "noise"]
    assert lines[2].split() == ["msp", "50.0/75.0", "50.0"]
    assert lines[3].split() == ["knn", "0.0/100.0", "0.0"]
    assert str(two_rows()) == repr(two_rows())
    assert repr(Rows()) == "Rows([])"


def test_a_notebook_shows_a_table_with_the_best_in_bold():
    found = Page(two_rows()._repr_html_())
    assert len(found.all("tr")) == 3
    assert len(found.all("strong")) == 3  # FPR95 and AUROC of the average, FPR95 of the set
    assert {"msp", "knn", "average", "noise", "100.0"} <= set(found.texts)
    assert "no rows" in Rows()._repr_html_()


def test_names_cannot_inject_html():
    rows = two_rows("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>')
    found = Page(rows._repr_html_())
    assert not found.all("script") + found.all("img")
    assert "<script>alert(1)</script>" in found.texts


def test_rows_become_a_dataframe():
    rows = benchmark(["msp"], **experiment(), bootstrap=20)
    frame = rows.to_dataframe()
    assert isinstance(frame, pd.DataFrame)
    assert frame.ood_set.tolist() == ["near", "far"]
    assert frame.fpr95.tolist() == [row.fpr95 for row in rows]
    assert frame.fpr95_low.tolist() == [row.intervals["fpr95"][0] for row in rows]
    assert (frame.auroc_low <= frame.auroc_high).all()
    assert "intervals" not in frame
    assert len(Rows().to_dataframe()) == 0
    assert list(two_rows().to_dataframe().columns) == [name for name in vars(two_rows()[0]) if name != "intervals"]


def test_without_pandas_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"needs pandas.* pip install 'oodles\[dataf"):
        two_rows().to_dataframe()
