"""Every table of an experiment from one fit of each detector."""

import re

import pytest
from support.experiment import ood_features
from support.rows import cell

from oodles.bench import run as module
from oodles.bench.comparison import compare
from oodles.bench.run import Tables, benchmark, run_tables
from oodles.bench.sets import fit_on_sets
from oodles.detectors import parse
from oodles.errors import ArgumentError
from oodles.features import Features
from oodles.paper.published import TABLES
from oodles.paper.sweep import SWEEP_GRID
from oodles.testing import example_features

MAIN = ["msp", "energy", "react(90)", "dice(0.8)", "dice(0.9)"]


def experiment_features(seed=0):
    whole = example_features(400, 16, 4, seed=seed)
    ood = {f"set{k}": ood_features(whole.head, seed + k, 80 + k) for k in (1, 2)}
    return {"train": whole[:280], "test": whole[280:], **ood}


@pytest.fixture(scope="module")
def features():
    return experiment_features()


@pytest.fixture(scope="module")
def everything(features):
    return run_tables(list(TABLES), features, main=MAIN, p=0.9, id_set="ours", run="one")


# Tables -----------------------------------------------------------------------------------------


def test_all_tables_in_one_run(everything, features):
    assert list(everything.rows) == ["main", "sparsification", "selection", "msp"]
    assert [point.p for point in everything.points] == list(SWEEP_GRID)
    for name, rows in everything.rows.items():
        assert {row.ood_set for row in rows} == {"set1", "set2"}, name
        assert {(row.id_set, row.run) for row in rows} == {("ours", "one")}, name
    assert [row.detector for row in everything.rows["main"][::2]] == [parse(text).spec for text in MAIN]
    labels = features["test"].labels
    assert everything.accuracy == {"one": float(features["test"].logits.argmax(dim=1).eq(labels).double().mean())}


def test_random_detectors_run_with_five_seeds(everything):
    for table, names in (("sparsification", ("unit_dropout", "weight_dropout")), ("selection", ("random_k",))):
        for name in names:
            specs = {row.detector for row in everything.rows[table] if row.detector.startswith(name)}
            assert len(specs) == 5
            seeds = {int(found[1]) if (found := re.search(r"seed=(\d+)", spec)) else 0 for spec in specs}
            assert seeds == {0, 1, 2, 3, 4}
        shown = compare(everything.rows[table])
        assert all("±" in cell(shown, f"{name}(0.9)", "set1")[0][0] for name in names)


def test_every_row_once_and_as_the_benchmark_gives_it(everything, features):
    rows = everything.all_rows()
    keys = [(row.run, row.detector, row.ood_set) for row in rows]
    assert len(set(keys)) == len(keys)
    wanted = {row.detector for part in everything.rows.values() for row in part}
    wanted |= {row.detector for point in everything.points for row in point.rows}
    assert {row.detector for row in rows} == wanted
    sets = {"train": features["train"], "test": features["test"], "ood": {k: features[k] for k in ("set1", "set2")}}
    direct = benchmark({spec: parse(spec) for spec in sorted(wanted)}, **sets, id_set="ours", run="one")
    assert {(row.detector, row.ood_set): row for row in rows} == {(row.detector, row.ood_set): row for row in direct}


def test_a_detector_in_several_tables_is_fitted_once(features, monkeypatch):
    calls = []

    def counting(detectors, sets, **options):
        calls.append([detector.spec for detector in detectors])
        return fit_on_sets(detectors, sets, **options)

    monkeypatch.setattr(module, "fit_on_sets", counting)
    run_tables(["main", "sparsification", "selection", "msp"], features, main=MAIN, p=0.9)
    (specs,) = calls
    assert len(set(specs)) == len(specs)
    assert {"dice(0.9)+energy", "msp", "dice(0.9)+msp"} <= set(specs)


def test_runs_accumulate(features):
    first = run_tables(["main", "sweep"], features, main=["msp"], p=0.9, run="one")
    second = run_tables(["main", "sweep"], experiment_features(9), main=["msp"], p=0.9, run="two", into=first)
    assert second is first
    assert [row.run for row in first.rows["main"]] == ["one", "one", "two", "two"]
    assert len(first.points) == 2 * len(SWEEP_GRID)
    assert list(first.accuracy) == ["one", "two"]
    assert len(first.all_rows()) == 2 * 2 * (1 + len(SWEEP_GRID))
    assert "±" in cell(compare(first.rows["main"]), "msp", "set1")[0][0]


def test_intervals_are_kept_for_a_detector_that_is_also_in_the_sweep(features):
    result = run_tables(["main", "sweep"], features, main=["msp", "dice(0.9)"], p=0.9, bootstrap=20)
    with_intervals = {row.detector for row in result.all_rows() if row.intervals}
    assert {"msp", "dice(0.9)+energy"} <= with_intervals


def test_unlabelled_features_have_no_accuracy(features):
    bare = {name: Features(part.embedding, head=part.head) for name, part in features.items()}
    result = run_tables(["main", "sweep"], bare, main=["msp"], p=0.9)
    assert result.accuracy == {}
    assert {point.accuracy for point in result.points} == {None}


def test_invalid_tables_are_refused(features):
    with pytest.raises(ArgumentError, match="table 'nine' must be one of main, sparsification"):
        run_tables(["nine"], features, main=MAIN, p=0.9)
    with pytest.raises(ArgumentError, match="p is a fraction"):
        run_tables(["msp"], features, main=MAIN, p=90)
    assert Tables().all_rows() == []
