"""Extraction of an experiment's features, every table from them, and reading them back from a store."""

import os
import re

import numpy as np
import pytest
import torch
from PIL import Image
from support.networks import CLASSES, one_thread, seeded  # noqa: F401
from support.smooth import smooth
from torch import nn

from oodles.bench import experiment
from oodles.bench.experiment import Extraction, Tables, load_experiment, run_tables
from oodles.bench.run import benchmark
from oodles.bench.tables import compare
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import Transform
from oodles.detectors import parse
from oodles.errors import ArgumentError, DataError, FileError
from oodles.features import Features
from oodles.network.extraction import extract
from oodles.paper.sweep import SWEEP_GRID
from oodles.paper.tables import TABLES
from oodles.testing import example_features

MAIN = ["msp", "energy", "react(90)", "dice(0.8)", "dice(0.9)"]


def experiment_features(seed=0):
    whole = example_features(400, 16, 4, seed=seed)
    ood = {
        f"set{k}": Features(example_features(80 + k, 16, 4, seed=seed + k).embedding, head=whole.head) for k in (1, 2)
    }
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
        view = compare(everything.rows[table])
        assert all("±" in dict(view.lines)[f"{name}(0.9)"][0].numbers[0] for name in names)


def test_every_row_once_and_as_the_benchmark_gives_it(everything, features):
    rows = everything.all_rows()
    keys = [(row.run, row.detector, row.ood_set) for row in rows]
    assert len(set(keys)) == len(keys)
    wanted = {row.detector for part in everything.rows.values() for row in part}
    wanted |= {row.detector for point in everything.points for row in point.rows}
    assert {row.detector for row in rows} == wanted
    ood = {name: part for name, part in features.items() if name not in ("train", "test")}
    direct = benchmark(
        {spec: parse(spec) for spec in sorted(wanted)},
        train=features["train"],
        test=features["test"],
        ood=ood,
        id_set="ours",
        run="one",
    )
    assert {(row.detector, row.ood_set): row for row in rows} == {(row.detector, row.ood_set): row for row in direct}


def test_a_detector_in_several_tables_is_fitted_once(features, monkeypatch):
    calls = []

    def counting(detectors, **sets):
        calls.append([detector.spec for detector in detectors])
        return benchmark(detectors, **sets)

    monkeypatch.setattr(experiment, "benchmark", counting)
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
    assert "±" in compare(first.rows["main"]).lines[0][1][0].numbers[0]


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
    with pytest.raises(DataError, match="no OOD set"):
        run_tables(["main"], {name: features[name] for name in ("train", "test")}, main=MAIN, p=0.9)
    assert Tables().all_rows() == []


# Images to features -----------------------------------------------------------------------------


TRANSFORM = Transform(8, 8, (0.5,) * 3, (0.25,) * 3)


def net():
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("train/a", 9), ("train/b", 8), ("test/a", 4), ("test/b", 4), ("other/x", 5), ("other/y", 3)):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for k in range(count):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    return {name: open_images(tmp_path / "images" / name) for name in ("train", "test", "other")}


def test_an_extraction_keeps_the_labels_of_the_id_sets_and_is_reused_from_its_store(pictures, tmp_path):
    messages = []
    network = seeded(net)
    extraction = Extraction(TRANSFORM, tmp_path / "store", tell=messages.append)
    first = extraction.features(network, pictures)
    assert messages == ["train: 17 images", "test: 8 images", "other: 8 images"]
    assert {name: part.labels is not None for name, part in first.items()} == {
        "train": True,
        "test": True,
        "other": False,
    }
    seen = []
    network[0].register_forward_hook(lambda *_: seen.append(1))
    second = extraction.features(network, pictures)
    assert seen == [], "nothing is computed again"
    for name, part in load_experiment(tmp_path / "store").items():
        assert torch.equal(part.embedding, second[name].embedding)
        assert torch.equal(part.logits, first[name].logits)
    without = Extraction(TRANSFORM).features(seeded(net), pictures)
    assert torch.equal(without["other"].embedding, first["other"].embedding)


def test_an_extraction_samples_and_skips_unreadable_images(pictures, tmp_path):
    (tmp_path / "images" / "other" / "x" / "0.png").write_bytes(b"not an image")
    messages = []
    got = Extraction(TRANSFORM, limit=5, skip_bad=True, tell=messages.append).features(seeded(net), pictures)
    assert [len(part) for name, part in got.items() if name != "other"] == [5, 5]
    whole = Extraction(TRANSFORM, skip_bad=True, tell=messages.append).features(seeded(net), pictures)
    assert len(whole["other"]) == 7
    assert any(text.startswith("skipped: ") and "x/0.png" in text for text in messages)
    with pytest.raises(DataError, match="1 of 8 images cannot be read"):
        Extraction(TRANSFORM).features(seeded(net), pictures)


def test_another_networks_store_is_refused(pictures, tmp_path):
    Extraction(TRANSFORM, tmp_path / "store").features(seeded(net), pictures)
    with pytest.raises(FileError, match="was written with another model"):
        Extraction(TRANSFORM, tmp_path / "store").features(seeded(net, 1), pictures)


# One store for all detectors --------------------------------------------------------------------

ODIN, LAYERS = "odin(epsilon=0.1)", "mahalanobis(layers=('first',))"
SIZES = {"train": 30, "test": 14, "other": 12}


@pytest.fixture
def bitmaps(tmp_path):
    """Sets of different sizes, so that passes show which set they are of, in files that are all of one size."""
    rng = np.random.default_rng(1)
    for name, count in SIZES.items():
        for place in range(count):
            folder = tmp_path / "bitmaps" / name / f"class{place % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{place}.bmp")
    return {name: open_images(tmp_path / "bitmaps" / name) for name in SIZES}


def deep_run(network, sets, store=None, specs=(ODIN, LAYERS), **options):
    """The rows of these detectors and of two plain ones, and the passes by set: forward and backward."""
    network.forwards.clear()
    network.backwards.clear()
    extraction = Extraction(TRANSFORM, store, **options)
    features, ready = extraction.run(network, sets, [parse(spec) for spec in specs])
    found = run_tables(["main"], features, main=["msp", "dice(0.5)", *specs], p=0.5, deep=ready).all_rows()
    passes = {name: (network.forwards.count(n), network.backwards.count(n)) for name, n in SIZES.items()}
    return {(row.detector, row.ood_set): row for row in found}, passes


IDLE = dict.fromkeys(SIZES, (0, 0))
FULL = {"train": (4, 1), "test": (2, 1), "other": (2, 1)}


@pytest.fixture
def network():
    return smooth(dtype=torch.float32)


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
class TestOneStore:
    def test_the_network_runs_once_and_once_more_after_a_step(self, network, bitmaps, tmp_path):
        # training images: their features, tuning on them, a step that makes adversarial copies, and the copies
        _, passes = deep_run(network, bitmaps, tmp_path / "s")
        assert passes == FULL
        assert deep_run(network, bitmaps)[1] == FULL, "in memory too"

    def test_every_row_is_that_of_separate_extractions(self, network, bitmaps, tmp_path):
        rows, _ = deep_run(network, bitmaps, tmp_path / "s")
        plain = Extraction(TRANSFORM).features(network, bitmaps)
        direct = run_tables(["main"], plain, main=["msp", "dice(0.5)"], p=0.5).all_rows()
        alone = [deep_run(network, bitmaps, specs=[spec])[0] for spec in (ODIN, LAYERS)]
        assert {key: row for part in alone for key, row in part.items()} == rows
        assert [rows[row.detector, row.ood_set] for row in direct] == direct

    def test_a_second_run_is_arithmetic_only(self, network, bitmaps, tmp_path, monkeypatch):
        first, _ = deep_run(network, bitmaps, tmp_path / "s")
        monkeypatch.setattr(ImageLoader, "_decode", lambda *_: pytest.fail("an image was decoded"))
        network.first.register_forward_hook(lambda *_: pytest.fail("the network ran"))
        assert deep_run(network, bitmaps, tmp_path / "s") == (first, IDLE)
        assert deep_run(network, bitmaps, tmp_path / "s", [ODIN])[1] == IDLE
        assert deep_run(network, bitmaps, tmp_path / "s", [LAYERS])[1] == IDLE
        Extraction(TRANSFORM, tmp_path / "s").features(network, bitmaps)
        assert set(load_experiment(tmp_path / "s")) == set(SIZES)

    def test_further_detectors_extract_only_what_they_add(self, network, bitmaps, tmp_path):
        deep_run(network, bitmaps, tmp_path / "s", [ODIN])
        rows, passes = deep_run(network, bitmaps, tmp_path / "s")
        assert passes == {"train": (4, 1), "test": (1, 0), "other": (1, 0)}, "ODIN's step is not run again"
        assert rows == deep_run(network, bitmaps)[0]
        assert deep_run(network, bitmaps, tmp_path / "s") == (rows, IDLE)

    def test_stores_of_the_earlier_layout_are_used(self, network, bitmaps, tmp_path):
        """Plain features in one store, and layers and steps in another."""
        store, odin = tmp_path / "s", parse(ODIN)
        for name, images in bitmaps.items():
            options = {"labels": name != "other", "preprocessing": TRANSFORM.as_record(), "progress": False}
            loader = ImageLoader(images, TRANSFORM, labels=name != "other")
            extract(network, loader, store=store / name, **options)
            deep = {"layers": ["first"], "steps": () if name == "train" else odin.steps()}
            extract(network, loader, store=store / "passes" / f"{name:x>12}" / name, **deep, **options)
        rows, passes = deep_run(network, bitmaps, store)
        assert passes == {"train": (3, 1), "test": (0, 0), "other": (0, 0)}, "only tuning, which was not stored"
        assert rows == deep_run(network, bitmaps)[0]

    def test_a_changed_image_of_the_same_size_and_time(self, network, bitmaps, tmp_path, monkeypatch):
        path = next((tmp_path / "bitmaps" / "other").rglob("*.bmp"))
        before, content = path.stat(), path.read_bytes()

        def write(changed):
            path.write_bytes(changed)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

        deep_run(network, bitmaps, tmp_path / "s", [ODIN])
        write(content[:-1] + bytes([content[-1] ^ 255]))
        with pytest.raises(FileError, match="other was extracted from other inputs"):
            deep_run(network, bitmaps, tmp_path / "s", [ODIN])  # by the time of the change, where there is one
        write(content)
        monkeypatch.setattr(ImageLoader, "stamp", lambda loader: f"{loader.images.name} {len(loader.images)}")
        deep_run(network, bitmaps, tmp_path / "s", [ODIN])
        write(content[:-1] + bytes([content[-1] ^ 255]))
        assert deep_run(network, bitmaps, tmp_path / "s", [ODIN])[1] == IDLE
        with pytest.raises(FileError, match="other was extracted from other inputs"):
            deep_run(network, bitmaps, tmp_path / "s", [ODIN], verify=True)
        write(content)
        assert deep_run(network, bitmaps, tmp_path / "s", [ODIN], verify=True)[1] == IDLE

    @pytest.mark.parametrize("where", ["tuning", "copies", "other"])
    def test_an_interrupted_run_is_continued(self, network, bitmaps, tmp_path, where):
        calls = {"tuning": (30, 2), "copies": (30, 4), "other": (12, 1)}
        size, call = calls[where]

        def interrupt(module, inputs):
            if len(inputs[0]) == size and network.forwards.count(size) == call:
                raise KeyboardInterrupt

        handle = network.first.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            deep_run(network, bitmaps, tmp_path / "s")
        handle.remove()
        rows, passes = deep_run(network, bitmaps, tmp_path / "s")
        assert rows == deep_run(network, bitmaps)[0]
        left = {"tuning": (3, 1), "copies": (2, 1), "other": (0, 0)}
        assert passes["train"] == left[where], "what was complete is not extracted again"


# Loading from a store ---------------------------------------------------------------------------


def test_an_experiment_is_loaded_from_its_store(features, tmp_path):
    for name, part in features.items():
        part.save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a store")
    (tmp_path / "empty").mkdir()
    got = load_experiment(tmp_path)
    assert set(got) == set(features)
    for name, part in features.items():
        assert torch.equal(got[name].embedding, part.embedding)
        assert got[name].head.same_as(part.head)


def test_a_folder_that_is_not_an_experiment(features, tmp_path):
    with pytest.raises(DataError, match="nowhere has no train; give a folder written by `oodles bench`"):
        load_experiment(tmp_path / "nowhere")
    features["train"].save(tmp_path / "train")
    with pytest.raises(DataError, match="has no test"):
        load_experiment(tmp_path)
    features["test"].save(tmp_path / "test")
    with pytest.raises(DataError, match="has no OOD set besides train and test"):
        load_experiment(tmp_path)
    with pytest.raises(DataError, match="has no train"):
        load_experiment(tmp_path / "train")


def test_a_damaged_experiment_is_refused(features, tmp_path):
    for name, part in features.items():
        part.save(tmp_path / name)
    (tmp_path / "set1" / "manifest.json").write_text("{")
    with pytest.raises(FileError, match=r"set1.*manifest.json is not readable JSON"):
        load_experiment(tmp_path)
