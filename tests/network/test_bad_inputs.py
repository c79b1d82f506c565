"""``extract`` with inputs of unusual types, inputs that give NaN, and worker processes that fail."""

import json
import multiprocessing
import os
import signal
import time

import pytest
import torch
from support import networks
from support.networks import batched, one_thread, pictures, seeded  # noqa: F401
from support.processes import PATIENCE
from support.snapshots import lived_in, portrait, same
from torch.utils.data import DataLoader, Dataset

from oodles.calibration import Threshold
from oodles.detectors import Energy
from oodles.errors import ArgumentError, DataError
from oodles.features import Features
from oodles.guard import Guard
from oodles.network import storing
from oodles.network.extraction import extract

ROWS, BATCH = 20, 5


# Types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint16, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_rows_are_kept_in_floating_point_only(dtype):
    model = seeded(networks.Net)
    with pytest.raises(ArgumentError, match=rf"^dtype={dtype} cannot hold features"):
        extract(model, batched(ROWS, BATCH), dtype=dtype)
    assert model.body.calls == 0


@pytest.mark.parametrize(
    "convert",
    [
        lambda images: images.to(torch.int8),
        lambda images: images.abs().to(torch.uint16),
        lambda images: images.to(torch.float8_e4m3fn),
        lambda images: images.to(torch.complex64),
        torch.Tensor.to_sparse,
        lambda images: images.to("meta"),
        pytest.param(
            lambda images: torch.nested.nested_tensor(list(images)),
            marks=pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
        ),
    ],
    ids=["int8", "uint16", "float8", "complex", "sparse", "meta", "nested"],
)
def test_inputs_of_unusual_types_are_refused_in_one_line(convert):
    model = seeded(networks.Net)
    guard = Guard(model, Energy(), Threshold(value=0.0, id_rate=0.9, calibration_size=9))
    guard(pictures(2))
    for use in (guard, lambda images: extract(model, [images])):
        with pytest.raises(DataError, match=r"^(Net does not accept images|the model's images is|the model was).*$"):
            use(convert(pictures(4)))


# Inputs that give NaN -----------------------------------------------------------------------------


def with_bad_rows(*rows):
    batches = batched(ROWS, BATCH)
    for row in rows:
        batches[row // BATCH][0][row % BATCH] = float("nan")
    return batches


def without_rows(features, *rows):
    return features[[row for row in range(ROWS) if row not in rows]]


@pytest.mark.parametrize("bad", [(13,), (0, 1, 19), tuple(range(5, 12))], ids=["one", "some", "a whole batch"])
@pytest.mark.parametrize("stored", [False, True])
def test_marked_inputs_are_left_out_and_listed(tmp_path, bad, stored, monkeypatch):
    monkeypatch.setattr(storing, "SHARD_SECONDS", 0.0)  # one shard per batch
    model, store = seeded(networks.Net), tmp_path / "s" if stored else None
    message = rf"^{len(bad)} of {ROWS} inputs give NaN .* the first is input {bad[0]}; features.bad_rows lists them$"
    with pytest.warns(UserWarning, match=message):
        features = extract(model, with_bad_rows(*bad), on_bad="mark", layers=["body"], store=store)
    assert features.bad_rows == bad
    same(features, without_rows(extract(model, batched(ROWS, BATCH), layers=["body"]), *bad))
    assert features.to(dtype=torch.float64).bad_rows == bad
    features.save(tmp_path / "again")
    assert Features.load(tmp_path / "again").bad_rows == bad
    if stored:
        with pytest.warns(UserWarning, match=message):
            same(extract(model, with_bad_rows(*bad), on_bad="mark", layers=["body"], store=store), features)
        with pytest.raises(DataError, match=r'leaves out inputs that give NaN or infinite values; pass on_bad="mark"$'):
            extract(model, with_bad_rows(*bad), layers=["body"], store=store)


def test_an_extraction_that_a_bad_input_stopped_continues_with_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "SHARD_SECONDS", 0.0)
    model = seeded(networks.Net)
    with pytest.raises(DataError, match="the first is input 13"):
        extract(model, with_bad_rows(13), store=tmp_path / "s", head=False)
    model.body.calls = 0
    with pytest.warns(UserWarning, match="the first is input 13"):
        features = extract(model, with_bad_rows(13), store=tmp_path / "s", head=False, on_bad="mark")
    assert model.body.calls == 2, "the two batches before it are stored"
    same(features, without_rows(extract(model, batched(ROWS, BATCH), head=False), 13))


def test_without_a_good_input_there_are_no_features(tmp_path):
    for store in (None, tmp_path / "s"):
        with pytest.raises(DataError, match=r"^all 20 inputs give NaN or infinite values"):
            extract(seeded(networks.Net), with_bad_rows(*range(ROWS)), on_bad="mark", store=store)
    with pytest.raises(ArgumentError, match=r"^on_bad='skip' must be one of 'raise', 'mark'$"):
        extract(seeded(networks.Net), batched(ROWS, BATCH), on_bad="skip")


def test_a_row_too_large_for_float16_is_marked():
    batches = batched(ROWS, BATCH)
    batches[1][0][2] *= 1e6
    with pytest.raises(DataError, match="float16, whose largest number is 65504, the first is input 7"):
        extract(seeded(networks.Net), batches, dtype=torch.float16)
    with pytest.warns(UserWarning, match="the first is input 7"):
        assert extract(seeded(networks.Net), batches, dtype=torch.float16, on_bad="mark").bad_rows == (7,)


# Worker processes ---------------------------------------------------------------------------------


class Fails(Dataset):
    """Pictures, of which number 12 cannot be had once the loader is asked for it."""

    def __init__(self, how):
        self.how, self.images, self.asked = how, pictures(ROWS), multiprocessing.Event()

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if row == 12:
            self.asked.wait(PATIENCE)
            self.how()
        return self.images[row]


class Asking(DataLoader):
    """Tells its dataset when the third batch is asked for: an error of a worker can then hit nothing else."""

    def __iter__(self):
        batches = super().__iter__()
        for number in range(len(self)):
            if number == 2:
                self.dataset.asked.set()
            yield next(batches)


def cannot_be_read():
    raise OSError("12.png cannot be read\nsecond line")


def ends_slowly():
    os.closerange(3, 256)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (cannot_be_read, r"^the loader's dataset failed in a worker process: OSError: 12.png cannot be read$"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"^a worker process of the loader died \(.*\); use fewer"),
        (ends_slowly, r"^a worker process of the loader died \(.*\); use fewer"),
    ],
    ids=["raises", "killed", "ends slowly"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # also while the loader is deleted
def test_a_worker_that_fails_is_one_line_and_the_store_continues(tmp_path, monkeypatch, how, message):
    monkeypatch.setattr(storing, "SHARD_SECONDS", 0.0)
    model = lived_in()
    before, others = portrait(model), {*multiprocessing.active_children()}
    with pytest.raises(DataError, match=message) as caught:
        extract(
            model,
            Asking(Fails(how), batch_size=BATCH, num_workers=1, generator=torch.Generator()),
            store=tmp_path / "s",
        )
    assert "\n" not in str(caught.value)
    assert portrait(model) == before
    deadline = time.monotonic() + PATIENCE
    while how is not cannot_be_read and {*multiprocessing.active_children()} - others and time.monotonic() < deadline:
        time.sleep(0.01)  # a worker that ends only now is not reported again
    shards = json.loads((tmp_path / "s" / "manifest.json").read_text())["shards"]
    assert [entry["rows"] for entry in shards] == [BATCH] * 2
    whole = DataLoader(Fails(lambda: None), batch_size=BATCH)
    whole.dataset.asked.set()
    same(extract(model, whole, store=tmp_path / "s"), extract(model, [pictures(ROWS)]))
