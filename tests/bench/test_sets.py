"""The sets of a benchmark: extraction for all detectors at once, stores that serve the next run, and loading them."""

import os

import numpy as np
import pytest
import torch
from PIL import Image
from support.experiment import experiment
from support.networks import CLASSES, one_thread  # noqa: F401
from support.smooth import smooth

import oodles as ood
from oodles.bench.sets import extract_sets, load_sets
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import Transform
from oodles.errors import ArgumentError, DataError, FileError, FitWarning

TRANSFORM = Transform(8, 8, (0.5,) * 3, (0.25,) * 3)
ODIN, LAYERS = "odin(epsilon=0.1)", "mahalanobis(layers=('first',))"
SIZES = {"train": 30, "test": 14, "other": 12}
IDLE = dict.fromkeys(SIZES, (0, 0))
FULL = {"train": (4, 1), "test": (2, 1), "other": (2, 1)}


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


@pytest.fixture
def network():
    return smooth(dtype=torch.float32)


def about(sets):
    return {"train": sets["train"], "test": sets["test"], "ood": {"other": sets["other"]}}


def bench(network, sets, store=None, specs=("msp", "dice(0.5)", ODIN, LAYERS), **options):
    """The rows of these detectors, and the passes by set: forward and backward."""
    network.forwards.clear()
    network.backwards.clear()
    rows = ood.benchmark(specs, model=network, **about(sets), preprocessing=TRANSFORM, store=store, **options)
    return rows, {name: (network.forwards.count(n), network.backwards.count(n)) for name, n in SIZES.items()}


# Features, or the network ------------------------------------------------------------------------


def test_a_detector_that_must_be_tuned_is_benchmarked_on_loaders(network, bitmaps):
    loaders = {name: ImageLoader(images, TRANSFORM) for name, images in bitmaps.items()}
    detector = ood.ODIN()
    (row,) = ood.benchmark({"mine": detector}, model=network, **about(loaders))
    assert (row.detector, row.n_id, row.n_ood) == ("mine", 14, 12)
    assert detector.step_size in detector.grid
    for sets in (loaders, {name: list(loader) for name, loader in loaders.items()}):
        assert ood.benchmark(["odin"], model=network, **about(sets))[0].auroc == row.auroc, "any loader"


def test_loaders_give_the_rows_of_their_features(network, bitmaps):
    features = extract_sets(network, bitmaps, preprocessing=TRANSFORM)
    assert {name for name, part in features.items() if part.labels is not None} == {"train", "test"}
    specs = ["msp", "dice(0.5)", "knn(3)", "vim"]
    assert bench(network, bitmaps, specs=specs)[0] == ood.benchmark(specs, **about(features))


def test_what_does_not_fit_together_is_refused(network, bitmaps):
    features, images = experiment(), about(bitmaps)
    for call, message in (
        (lambda: ood.benchmark(["odin"], **features), "odin has to be tuned on the network; give model="),
        (lambda: ood.benchmark(["msp"], **images), "train is not features; give model="),
        (lambda: ood.benchmark(["msp"], model=network, **features), "train is features"),
        (lambda: ood.benchmark(["msp"], model=network, **images), "give preprocessing="),
        (lambda: ood.benchmark(["msp"], **features, bootstraps=9), "bootstraps= is for sets that the network runs on"),
        (lambda: ood.benchmark(["msp"], **{**features, "ood": {"test": features["test"]}}), "cannot be called train"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


def test_detectors_whose_layers_the_network_does_not_have_are_left_out(network, bitmaps):
    with pytest.warns(FitWarning, match=r"Smooth does not have their layers: mahalanobis"):
        rows, _ = bench(network, bitmaps, specs=["msp", "mahalanobis(layers=('conv1',))"])
    assert {row.detector for row in rows} == {"msp"}
    with pytest.raises(DataError, match="RankFeat"):  # for its own reason: layers with a reduction are known too
        bench(network, bitmaps, specs=["msp", "rankfeat(layer='second')"])
    with pytest.raises(ArgumentError, match="conv1"):
        bench(network, bitmaps, specs=["mahalanobis(layers=('conv1',))"])


def test_messages_limits_and_unreadable_images(network, bitmaps, tmp_path):
    next((tmp_path / "bitmaps" / "other").rglob("*.bmp")).write_bytes(b"not an image")
    messages = []
    bench(network, bitmaps, specs=["msp", "odin"], skip_bad=True, tell=messages.append)
    assert messages[0] == "train: 30 images"
    chosen = next(each for each in messages if each.startswith("odin: epsilon "))
    assert chosen.endswith("chosen on 30 ID images")
    assert "test: 14 images, with 0 inner layers and 1 input steps" in messages
    assert any(each.startswith("skipped: ") for each in messages)
    with pytest.raises(DataError, match="1 of 12 images cannot be read"):
        bench(network, bitmaps)


# One store for all detectors --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
class TestOneStore:
    def test_few_passes_give_the_rows_of_separate_extractions(self, network, bitmaps, tmp_path):
        rows, passes = bench(network, bitmaps, tmp_path / "s")
        # training images: their features, tuning on them, a step that makes adversarial copies, and the copies
        assert passes == FULL
        assert bench(network, bitmaps)[1] == FULL, "in memory too"
        alone = [bench(network, bitmaps, specs=specs)[0] for specs in (["msp", "dice(0.5)"], [ODIN], [LAYERS])]
        assert [row for part in alone for row in part] == rows

    def test_a_second_run_is_arithmetic_only(self, network, bitmaps, tmp_path, monkeypatch):
        first, _ = bench(network, bitmaps, tmp_path / "s")
        monkeypatch.setattr(ImageLoader, "_prepare", lambda *_: pytest.fail("an image was decoded"))
        network.first.register_forward_hook(lambda *_: pytest.fail("the network ran"))
        assert bench(network, bitmaps, tmp_path / "s") == (first, IDLE)
        for specs in (["msp"], [ODIN], [LAYERS]):
            assert bench(network, bitmaps, tmp_path / "s", specs)[1] == IDLE
        assert set(load_sets(tmp_path / "s")) == set(SIZES)

    def test_further_detectors_extract_only_what_they_add(self, network, bitmaps, tmp_path):
        bench(network, bitmaps, tmp_path / "s", [ODIN])
        rows, passes = bench(network, bitmaps, tmp_path / "s")
        assert passes == {"train": (4, 1), "test": (1, 0), "other": (1, 0)}, "ODIN's step is not run again"
        assert rows == bench(network, bitmaps)[0]
        assert bench(network, bitmaps, tmp_path / "s") == (rows, IDLE)

    def test_another_networks_store_is_refused(self, network, bitmaps, tmp_path):
        bench(network, bitmaps, tmp_path / "s", ["msp"])
        with pytest.raises(FileError, match="was written with another model"):
            bench(smooth(seed=1, dtype=torch.float32), bitmaps, tmp_path / "s", ["msp"])

    def test_a_changed_image_of_the_same_size_and_time(self, network, bitmaps, tmp_path, monkeypatch):
        path = next((tmp_path / "bitmaps" / "other").rglob("*.bmp"))
        before, content = path.stat(), path.read_bytes()

        def write(changed):
            path.write_bytes(changed)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

        bench(network, bitmaps, tmp_path / "s", [ODIN])
        write(content[:-1] + bytes([content[-1] ^ 255]))
        with pytest.raises(FileError, match="other was extracted from other inputs"):
            bench(network, bitmaps, tmp_path / "s", [ODIN])  # by the time of the change, where there is one
        write(content)
        monkeypatch.setattr(ImageLoader, "stamp", lambda loader: f"{loader.images.name} {len(loader.images)}")
        bench(network, bitmaps, tmp_path / "s", [ODIN])
        write(content[:-1] + bytes([content[-1] ^ 255]))
        assert bench(network, bitmaps, tmp_path / "s", [ODIN])[1] == IDLE
        with pytest.raises(FileError, match="other was extracted from other inputs"):
            bench(network, bitmaps, tmp_path / "s", [ODIN], verify=True)
        write(content)
        assert bench(network, bitmaps, tmp_path / "s", [ODIN], verify=True)[1] == IDLE

    @pytest.mark.parametrize(
        ("size", "call", "left"), [(30, 2, (3, 1)), (30, 4, (2, 1)), (12, 1, (0, 0))], ids=["tuning", "copies", "other"]
    )
    def test_an_interrupted_run_is_continued(self, network, bitmaps, tmp_path, size, call, left):
        def interrupt(module, inputs):
            if len(inputs[0]) == size and network.forwards.count(size) == call:
                raise KeyboardInterrupt

        handle = network.first.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench(network, bitmaps, tmp_path / "s")
        handle.remove()
        rows, passes = bench(network, bitmaps, tmp_path / "s")
        assert rows == bench(network, bitmaps)[0]
        assert passes["train"] == left, "what was complete is not extracted again"


# Loading from a store ---------------------------------------------------------------------------


@pytest.fixture
def features():
    sets = experiment()
    return {"train": sets["train"], "test": sets["test"], **sets["ood"]}


def test_sets_are_loaded_from_their_store_unless_it_is_damaged(features, tmp_path):
    for name, part in features.items():
        part.save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a store")
    (tmp_path / "empty").mkdir()
    got = load_sets(tmp_path)
    assert set(got) == set(features)
    for name, part in features.items():
        assert torch.equal(got[name].embedding, part.embedding)
        assert got[name].head.same_as(part.head)
    (tmp_path / "near" / "manifest.json").write_text("{")
    with pytest.raises(FileError, match=r"near.*manifest.json is not readable JSON"):
        load_sets(tmp_path)


def test_a_folder_that_is_not_an_experiment(features, tmp_path):
    with pytest.raises(DataError, match="nowhere has no train"):
        load_sets(tmp_path / "nowhere")
    features["train"].save(tmp_path / "train")
    with pytest.raises(DataError, match="has no test"):
        load_sets(tmp_path)
    features["test"].save(tmp_path / "test")
    with pytest.raises(DataError, match="has no OOD set besides train and test"):
        load_sets(tmp_path)
    with pytest.raises(DataError, match="has no train"):
        load_sets(tmp_path / "train")
