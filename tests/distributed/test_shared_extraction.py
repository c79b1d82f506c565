"""``extract`` in 1, 2 and 3 real processes: the same bits, whoever computes what, and whatever happens to them."""

import json
import re

import pytest
from support.images import write_image
from support.networks import Net, batched, interrupted, one_thread, seeded  # noqa: F401
from support.processes import extract_all, extract_slowly, fail_early, launch, refuse_all, spoiled
from support.snapshots import same

from oodles.errors import FileError
from oodles.features import Features
from oodles.network import storing
from oodles.network.extraction import extract


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number in range(13):
        write_image(folder / f"{'ab'[number % 2]}/{number:02}.png", seed=number)
    (folder / "b/05.png").write_bytes(b"not an image")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory, images):
    """The stores that one process writes."""
    folder = tmp_path_factory.mktemp("alone")
    (outcome,) = launch(1, extract_all, folder, images)
    assert outcome.error == ""
    return folder


STORES = ["list-20", "list-23", "list-7", "list-3", "dataset", "stream", "marked", "images"]


@pytest.fixture(scope="module", params=[2, 3])
def shared(request, tmp_path_factory, images):
    """The stores that several processes write, and what each of them has read."""
    folder = tmp_path_factory.mktemp(f"by-{request.param}")
    outcomes = launch(request.param, extract_all, folder, images)
    assert [outcome.error for outcome in outcomes] == [""] * request.param
    return folder, [outcome.value for outcome in outcomes]


@pytest.mark.parametrize("name", STORES)
def test_any_number_of_processes_gives_the_same_bits(alone, shared, name):
    one, several = Features.load(alone / name), Features.load(shared[0] / name)
    same(several, one)
    assert several.embedding.dtype == one.embedding.dtype
    assert several.bad_rows == one.bad_rows
    assert several.class_names == one.class_names
    manifests = [json.loads((folder / name / "manifest.json").read_text()) for folder in (alone, shared[0])]
    assert manifests[0]["about"] == manifests[1]["about"]
    assert sorted(path.name for path in (shared[0] / name).iterdir() if not path.name.startswith(".")) == sorted(
        ["manifest.json", manifests[1]["head"]["file"], *(entry["file"] for entry in manifests[1]["shards"])]
    ), "nothing else is left in the folder"


def test_the_stores_of_one_process_are_what_extract_gives(alone):
    same(Features.load(alone / "list-23"), extract(seeded(Net), batched(23, 5)))
    with pytest.warns(UserWarning, match="3 of 23 inputs"):
        marked = extract(seeded(Net), spoiled(23, 5, (1, 8, 22)), on_bad="mark")
    assert Features.load(alone / "marked").bad_rows == marked.bad_rows == (1, 8, 22)


def test_each_process_reads_its_share_and_the_first_batch_only(shared):
    read = [value["dataset"] for value in shared[1]]
    shares = {2: [range(15), range(15, 23)], 3: [range(10), range(10, 20), range(20, 23)]}[len(read)]
    assert read == [sorted({*range(5), *share}) for share in shares]
    counts = {2: [4 + 4, 4 + 3 + 1], 3: [4 + 4, 4 + 3, 4 + 1]}[len(read)]
    assert [len(value["images"]) for value in shared[1]] == counts, "of 13 images in batches of 4, one is unreadable"


def test_what_is_refused_is_refused_in_every_process_and_they_go_on_together(tmp_path):
    outcomes = launch(2, refuse_all, tmp_path)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    by_first, by_second = (outcome.value for outcome in outcomes)
    expected = [
        r"begin with different batches; give each process the same loader of all inputs.*DistributedSampler",
        r"was written with another model",
        r"list_iterator has no length, so its batches cannot be shared among 2 processes; give a loader with a length",
        r"have \[4, 3\] batches; give each process",
        r"1 of 5 inputs of a batch give NaN or infinite values, the first is input 3 of batch 2; check that",
        r"the loader gave 4 batches, but its length is 5",
        r"the loader gave 4 batches, but its length is 3",
        r"the loader gave no batch",
        r"^$",
        r"was extracted from other inputs, in another order or in other batch sizes; they differ at shard-0000",
        r"the disk is gone",
    ]
    assert len(by_first) == len(by_second) == len(expected)
    for pattern, *messages in zip(expected, by_first, by_second, strict=True):
        for message in messages:
            assert re.search(pattern, message), (pattern, message)
    assert by_first[4].startswith("process 1 of 2 failed: "), "the batch is in the share of the second process"
    same(Features.load(tmp_path / "refused"), extract(seeded(Net), batched(20, 5)))


def test_an_error_in_one_process_ends_the_others_at_once(tmp_path):
    outcomes = launch(2, fail_early, tmp_path / "s")
    assert outcomes[1].error == "OSError: disk gone"
    assert outcomes[0].error == "OodlesError: process 1 of 2 failed: OSError: disk gone"


@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_killed_process_leaves_a_store_that_any_number_completes(tmp_path, then):
    store = tmp_path / "s"
    outcomes = launch(3, extract_slowly, store, 1)
    assert outcomes[1].error == "killed"
    for rank in (0, 2):
        assert re.match(
            rf"OodlesError: process {rank} of 3 lost another one, which was killed .*; run the same again$",
            outcomes[rank].error,
        )
    with pytest.raises(FileError, match="unfinished"):
        Features.load(store)
    kept = {path.name: path.read_bytes() for path in store.glob("shard-*")}
    assert "shard-00004.safetensors" in kept, "which the killed process wrote"
    assert len(kept) < 10
    outcomes = launch(then, extract_slowly, store, None)
    assert [outcome.value for outcome in outcomes] == [40] * then
    same(Features.load(store), extract(seeded(Net), batched(40, 4)))
    assert {name: (store / name).read_bytes() for name in kept} == kept, "complete shards are not written again"


def test_a_store_that_one_process_began_is_continued_by_several(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "SHARD_ELEMENTS", 1)
    batches = batched(40, 4)
    with pytest.raises(KeyboardInterrupt):
        extract(seeded(Net), interrupted(batches[:3]), store=tmp_path / "s")
    outcomes = launch(2, extract_slowly, tmp_path / "s", None)
    assert [outcome.value for outcome in outcomes] == [40, 40]
    same(Features.load(tmp_path / "s"), extract(seeded(Net), batches))
