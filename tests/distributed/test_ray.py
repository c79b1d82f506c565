"""Two Ray workers on this machine, compared with one process.

Every job starts workers, which takes seconds, so there are few jobs, and each shows several things. What workers do
with a batch is tested without Ray in ``test_ray_workers.py``.
"""

import os
import signal
import threading
import time

import pyarrow.parquet
import pytest
import torch
from support.images import write_16_bit_png, write_image

import oodles
from oodles import cli
from oodles.cli.guards import load_with_model
from oodles.cli.options import GuardOptions
from oodles.cli.score_with_ray import _one_line_errors
from oodles.data.loaders import ImageLoader
from oodles.data.readers import ImageSet, open_image
from oodles.data.transforms import CIFAR
from oodles.deploy.opening import open_guard
from oodles.deploy.results.rows import COLUMNS
from oodles.detectors import parse
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features
from oodles.models import load
from oodles.models.shipped import GUARD, shipped_folder
from oodles.network.extraction import extract

ray = pytest.importorskip("ray")

from oodles.distributed import ray as distributed  # noqa: E402 - needs Ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NETWORK = "cifar10-small"
SAVED = shipped_folder(NETWORK) / GUARD
IMAGES, BAD = 1100, 5
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # batches are cut differently, which changes the rounding


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Three CPUs: one for each worker and one for reading."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=3, object_store_memory=200_000_000, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images and five files that cannot be read as such."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(IMAGES):
        write_image(folder / f"{number:04}.png", size=(32, 32) if number % 3 else (40, 33), seed=number)
    (folder / "a broken one.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("not an image")
    (folder / "cut.png").write_bytes((folder / "0500.png").read_bytes()[:900])
    write_16_bit_png(folder / "deep.png", 0)
    return folder


@pytest.fixture(scope="module")
def features(photos):
    """The features of the readable images, from one process."""
    paths = sorted(photos.glob("[0-9]*.png"))
    images = ImageSet("photos", list(map(str, paths)), lambda row: open_image(paths[row]))
    return images.names, extract(load(NETWORK), ImageLoader(images, CIFAR))


def check_verdicts(table, features, photos):
    """Every input is there once, with the verdict of one process, or with an error if it cannot be read."""
    assert tuple(table.column_names) == COLUMNS
    assert table.num_rows == IMAGES + BAD
    rows = {row.pop("path"): row for row in table.to_pylist()}
    assert set(rows) == {str(path) for path in photos.iterdir()}
    paths, alone = features
    guard = oodles.Guard.load(SAVED, load(NETWORK))
    good = [rows.pop(path) for path in paths]
    scores = guard.detector.score(alone)
    torch.testing.assert_close(torch.tensor([row["score"] for row in good]), scores, **CLOSE)
    assert [row["is_id"] for row in good] == (scores >= guard.threshold.value).tolist()
    assert 0 < sum(row["is_id"] for row in good) < IMAGES, "the images should not all be alike"
    labels = alone.logits.argmax(dim=1).tolist()
    assert [(row["label"], row["class_name"]) for row in good] == [
        (label, guard.class_names[label]) for label in labels
    ]
    assert {row["error"] for row in good} == {None}
    nothing = dict.fromkeys(("label", "class_name", "probability", "score", "p_value")) | {"is_id": False}
    assert all(row["error"] and row | nothing == row for row in rows.values())
    assert rows[str(photos / "empty.jpg")]["error"] == "empty file"


def test_a_worker_that_is_killed_in_the_middle(photos, features, tmp_path):
    (tmp_path / "calls").mkdir()

    def waiting_guard():
        guard = open_guard(SAVED, load("cifar10-small"))
        judge = guard.judge

        def counted(*inputs):
            with (tmp_path / "calls" / str(os.getpid())).open("a") as calls:
                calls.write(".")
            # a batch of rows is 9 calls: a worker that has begun the second has delivered the first
            if calls_of(os.getpid()) == 12 and claim(tmp_path / "killed"):
                time.sleep(600)
            return judge(*inputs)

        guard.judge = counted
        return guard

    def calls_of(worker):
        return (tmp_path / "calls" / str(worker)).stat().st_size

    def claim(path):
        """Whether this worker is the first to get here."""
        try:
            with path.open("x") as file:
                file.write(f"{os.getpid()}\n")
        except FileExistsError:
            return False
        return True

    def kill_one():
        while not (tmp_path / "killed").exists() or not (tmp_path / "killed").read_text().endswith("\n"):
            time.sleep(0.02)
        os.kill(int((tmp_path / "killed").read_text()), signal.SIGKILL)

    threading.Thread(target=kill_one, daemon=True).start()
    verdicts = distributed.score(
        distributed.from_paths(photos.iterdir()), waiting_guard, workers=distributed.Workers(2)
    )
    table = pyarrow.concat_tables(verdicts.iter_batches(batch_format="pyarrow", batch_size=None))
    assert len(list((tmp_path / "calls").iterdir())) >= 3, "a third worker took the place of the one that was killed"
    check_verdicts(table, features, photos)


def test_extract_writes_the_features_of_one_process(photos, features, tmp_path):
    rows = ray.data.read_binary_files(str(photos), include_paths=True)
    extracted = distributed.extract(rows, lambda: load("cifar10-small"), CIFAR, workers=distributed.Workers(1))
    extracted.write_parquet(str(tmp_path / "features"))
    found = {row["path"]: row for row in pyarrow.parquet.read_table(tmp_path / "features").to_pylist()}
    assert len(found) == IMAGES + BAD
    paths, alone = features
    for name in ("embedding", "logits"):
        stored = torch.tensor([found[path][name] for path in paths])
        torch.testing.assert_close(stored, getattr(alone, name), **CLOSE)
    assert sum(row["embedding"] is None and bool(row["error"]) for row in found.values()) == BAD


def test_fit_merges_what_several_tasks_observed(photos, features, monkeypatch):
    monkeypatch.setattr(distributed, "FIT_ROWS", 256)
    labelled = distributed.from_paths(photos.iterdir()).map(lambda row: {**row, "labels": ord(row["path"][-5]) % 2})
    with pytest.warns(FitWarning) as caught:
        fitted = distributed.fit(
            "mahalanobis", labelled, lambda: load("cifar10-small"), CIFAR, workers=distributed.Workers(2)
        )
    left_out = f"{BAD} of {IMAGES + BAD} rows are left out of the fit, one of them is {photos}"
    assert sum(str(each.message).startswith(left_out) for each in caught) == 1
    paths, alone = features
    labels = torch.tensor([ord(path[-5]) % 2 for path in paths])
    with pytest.warns(FitWarning, match="8 of 10 classes have no"):
        whole = parse("mahalanobis").fit(Features(alone.embedding, head=alone.head, labels=labels))
    torch.testing.assert_close(fitted.score(alone), whole.score(alone), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("exported", [False, True])
def test_the_command_writes_a_folder_of_parquet_files(exported, photos, features, tmp_path, monkeypatch, capsys):
    content = [{"path": str(path), "bytes": path.read_bytes()} for path in photos.iterdir()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), tmp_path / "photos.parquet")
    guard = [tmp_path / "guard.zip"] if exported else []
    if exported:
        load_with_model(None, GuardOptions()).export(*guard)
    inputs = [*guard, tmp_path / "photos.parquet"]
    command = ["oodles", "score", *inputs, "--ray", "--ray-workers", "2", "--out", tmp_path / "out"]
    monkeypatch.setattr("sys.argv", list(map(str, command)))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    assert said.out == ""
    assert f"of {IMAGES} in-distribution (" in said.err
    assert f", {BAD} with an error; written to {tmp_path / 'out'}" in said.err
    check_verdicts(pyarrow.parquet.read_table(tmp_path / "out"), features, photos)
    assert {*tmp_path.iterdir()} == {*inputs, tmp_path / "out"}


def test_what_a_worker_could_not_do_is_one_line():
    @ray.remote
    def work():
        raise oodles.HeadError("the model has no head")

    with pytest.raises(DataError, match=r"^a Ray worker failed: the model has no head$"), _one_line_errors():
        ray.get(work.remote())


def test_a_cluster_without_room_for_workers_and_reading_is_refused_at_once(photos):
    rows = distributed.from_paths(photos.iterdir())
    for workers in (distributed.Workers(3), distributed.Workers(2, cpus=1.5), distributed.Workers(cpus=2.5)):
        with pytest.raises(ArgumentError, match=r"the cluster has 3 CPUs, too few for"):
            distributed.score(rows, lambda: None, workers=workers)
    with pytest.raises(ArgumentError, match="too few for a worker of 1 CPUs and 1 GPUs"):
        distributed.score(rows, lambda: None, workers=distributed.Workers(gpus=1))


def test_what_cannot_work_is_refused_before_workers_start(features):
    with pytest.raises(DataError, match=r"no column path, by which .* \(its columns: image\)"):
        distributed.score(ray.data.from_items([{"image": b""}]), lambda: None)
    with pytest.raises(ArgumentError, match="is fitted already"):
        distributed.fit(parse("knn(1)").fit(features[1]), distributed.from_paths(["a.png"]), lambda: None, CIFAR)
    with pytest.raises(DataError, match="there are no images"):
        distributed.from_paths([])
    with pytest.raises(DataError, match="is not valid text"):
        distributed.from_paths([b"caf\xe9.png".decode("utf-8", "surrogateescape")])
    for wrong in ({"count": 0}, {"cpus": 0}, {"gpus": -1}, {"batch_size": 0}):
        with pytest.raises(ArgumentError, match="is impossible; give at least 1 worker"):
            distributed.Workers(**wrong)
