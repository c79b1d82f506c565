"""The published numbers: copied correctly, and found for every kind of cell."""

import json
from statistics import fmean

import pytest

from oodles.bench.suites import SUITES
from oodles.detectors import parse
from oodles.errors import ArgumentError
from oodles.paper.published import (
    AVERAGE,
    METHODS,
    SEEDS,
    SELECTIONS,
    SPARSIFICATIONS,
    TABLES,
    Published,
    detectors_of,
    published,
    published_gap,
    published_sets,
    published_sweep,
    tables,
    without_seed,
)
from oodles.paper.sweep import SWEEP_GRID


def test_every_table_is_the_one_copied_from_the_paper(data):
    source = data.parent / "paper" / "tables.json"
    if not source.is_file():
        pytest.skip(f"no {source}; it is not shipped")
    copied = json.loads(source.read_text())
    assert tables().keys() == copied.keys()
    for name, table in copied.items():
        assert tables()[name] == table, name


# rows of the paper's tables whose stated average is not that of their cells
INCONSISTENT = {("cifar10", "ReAct"), ("cifar100", "Mahalanobis"), ("cifar100", "ReAct")}


@pytest.mark.parametrize("id_set", ["cifar10", "cifar100", "imagenet"])
def test_averages_are_those_of_their_rows(id_set):
    # finds a wrong digit even if the copied tables are not available; the paper rounds to hundredths
    for method, cells in tables()[id_set].items():
        if (id_set, method) in INCONSISTENT:
            continue
        for metric in ("fpr95", "auroc"):
            found = {name: cell[metric] for name, cell in cells.items()}
            values = {name: each["mean"] if isinstance(each, dict) else each for name, each in found.items()}
            stated = values.pop(AVERAGE)
            assert fmean(values.values()) == pytest.approx(stated, abs=0.02), (method, metric)


@pytest.mark.parametrize(
    ("id_set", "detector", "ood_set", "cell"),
    [
        ("cifar10", "msp", "svhn", Published(47.24, 93.48)),
        ("cifar10", "energy", AVERAGE, Published(26.55, 94.57)),
        ("cifar10", "dice(0.9)+energy", AVERAGE, Published(20.83, 95.24, 1.58, 0.24)),
        ("cifar100", "dice(0.9)+energy", AVERAGE, Published(49.72, 87.23, 1.69, 0.73)),
        ("cifar10", "dice(0.9)+msp", "svhn", Published(45.94)),
        ("cifar10", "dice(0.9)+msp", AVERAGE, Published(43.67)),
        ("cifar10", "bottom_k(0.9)+energy", AVERAGE, Published(91.87)),
        ("cifar100", "top_bottom_k(0.9)+energy", AVERAGE, Published(59.93)),
        ("cifar10", "random_k(0.9, seed=4)+energy", AVERAGE, Published(62.12)),
        ("imagenet", "msp", "inaturalist", Published(54.99, 87.74)),
        ("imagenet", "dice(0.7)+energy", AVERAGE, Published(34.75, 90.77)),
        ("imagenet", "react(threshold=1.0)+energy", "textures", Published(47.3, 89.8)),
        ("imagenet", "react(threshold=1.0)+dice(0.1)+energy", "sun", Published(25.45, 93.94)),
        ("imagenet", "weight_dropout(0.7, seed=2)+energy", AVERAGE, Published(76.28, 76.55)),
        ("imagenet", "unit_pruning(0.7)+energy", AVERAGE, Published(90.8, 49.15)),
    ],
)
def test_a_cell_of_each_kind(id_set, detector, ood_set, cell):
    assert published(id_set, detector, ood_set) == cell


def test_every_method_has_every_cell_of_its_table():
    for id_set, methods in METHODS.items():
        for spec in methods:
            assert parse(spec).spec == spec
            for ood_set in (*SUITES[id_set].ood, AVERAGE):
                cell = published(id_set, spec, ood_set)
                assert cell is not None, (id_set, spec, ood_set)
                assert 0 <= cell.fpr95 <= 100
                assert 0 <= cell.auroc <= 100
    for spec in (*SELECTIONS, *SPARSIFICATIONS):
        assert parse(spec).spec == spec


def test_the_ablations_at_the_papers_p_have_cells():
    for id_set, p in (("cifar10", 0.9), ("cifar100", 0.9), ("imagenet", 0.7)):
        for table in ("sparsification", "selection") if p == 0.9 else ("sparsification",):
            for text in detectors_of(table, (), p):
                assert published(id_set, parse(text).spec, AVERAGE) is not None, (id_set, text)


@pytest.mark.parametrize(
    ("id_set", "detector", "ood_set"),
    [
        ("cifar10", "dice(0.5)+energy", "svhn"),
        ("cifar10", "msp", "places_crop"),
        ("cifar100", "dice(0.9)+msp", "svhn"),
        ("cifar10", "bottom_k(0.9)+energy", "svhn"),
        ("cifar10", "weight_dropout(0.7)+energy", AVERAGE),
        ("imagenet", "weight_dropout(0.7)+energy", "sun"),
        ("mnist", "msp", "svhn"),
        ("sparsity_sweep", "msp", "cifar10"),
    ],
)
def test_none_if_the_paper_has_no_such_cell(id_set, detector, ood_set):
    assert published(id_set, detector, ood_set) is None


def test_the_sets_an_average_is_over():
    for name, suite in SUITES.items():
        assert published_sets(name) == set(suite.ood)
    assert published_sets("mnist") == set()


def test_the_sweep_and_the_gap():
    assert published_sweep("cifar10", 0.0) == {"fpr95": 26.55, "auroc": 94.57, "accuracy": 94.5}
    assert published_sweep("imagenet", 0.7) == {"fpr95": 34.75, "auroc": 90.77, "accuracy": 73.82}
    assert published_sweep("cifar100", 0.9) == published_sweep("cifar10", 0.2) == {}
    for p in SWEEP_GRID:
        assert set(published_sweep("cifar10", p)) == {"fpr95", "auroc", "accuracy"}
    assert published_gap("cifar100", 0) == 6.67
    assert published_gap("cifar100", 0.3) == 8.04
    assert published_gap("cifar100", 0.99) is published_gap("cifar10", 0.3) is None


def test_the_seed_is_removed():
    assert without_seed("react(90)+unit_dropout(0.7, seed=12)+msp") == "react(90)+unit_dropout(0.7)+msp"
    assert without_seed("dice(0.9)+energy") == "dice(0.9)+energy"


# Which detectors --------------------------------------------------------------------------------


def test_the_tables_compare_what_the_paper_compares():
    assert detectors_of("main", ("msp", "dice(0.9)"), 0.5) == ["msp", "dice(0.9)"]
    assert detectors_of("msp", (), 0.8) == ["msp", "dice(0.8)+msp"]
    assert detectors_of("sweep", (), 0.8) == []
    for table in TABLES:
        specs = [parse(text).spec for text in detectors_of(table, ("msp",), 0.7)]
        assert len(set(specs)) == len(specs)
        random = [spec for spec in specs if "dropout" in spec or "random" in spec]
        kinds = {without_seed(spec) for spec in random}
        assert len(random) == len(SEEDS) * len(kinds) == 5 * len(kinds)
    stems = [{without_seed(text).partition("(")[0] for text in detectors_of(t, (), 0.9)} for t in list(TABLES)[1:3]]
    assert stems[0] == {"unit_dropout", "weight_dropout", "unit_pruning", "weight_pruning", "dice"}
    assert stems[1] == {"bottom_k", "top_bottom_k", "random_k", "dice"}
    with pytest.raises(ArgumentError, match="table 'seven' must be one of main, sparsification"):
        detectors_of("seven", (), 0.9)
