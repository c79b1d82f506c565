"""Stores that are recognised without reading an image, and gaps that other processes left."""

import os
import re

import pytest
import torch
from support import networks
from support.images import PLAIN, write_cifar_batch, write_image, write_zip
from support.networks import batched, one_thread, pictures, seeded  # noqa: F401
from support.snapshots import same

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import Transform
from oodles.errors import ArgumentError, FileError
from oodles.network import storing
from oodles.network.extraction import extract
from oodles.records.files import write_record
from oodles.store import read_manifest


@pytest.fixture
def folder(tmp_path):
    for number in range(10):
        write_image(tmp_path / "images" / f"{'abcde'[number % 5]}/{number:02}.png", seed=number)
    return tmp_path / "images"


def loader(path, **options):
    return ImageLoader(open_images(path), PLAIN, **({"batch_size": 4} | options))


# Stamps -------------------------------------------------------------------------------------------


def test_a_complete_store_is_recognised_without_reading_an_image(folder, tmp_path):
    model, store = seeded(networks.Net), tmp_path / "s"
    first = extract(model, loader(folder), store=store)
    model.body.calls = 0
    again = loader(folder)
    same(extract(model, again, store=store), first)
    assert (again.names, model.body.calls) == ([], 0)
    same(extract(model, again, store=store, verify=True), first)
    assert (len(again.names), model.body.calls) == (10, 0), "read, but not run through the network"
    os.utime(folder / "e/04.png", ns=(1, 1))
    for count in (10, 0):  # a file with another time is read, and then recognised
        again = loader(folder)
        same(extract(model, again, store=store), first)
        assert (len(again.names), model.body.calls) == (count, 0)


def test_an_altered_image_is_refused_though_its_size_and_time_are_the_same(folder, tmp_path):
    """The time at which a file was changed cannot be set back."""
    path = folder / "e/04.png"
    extract(seeded(networks.Net), loader(folder), store=tmp_path / "s")
    before = path.stat()
    content = path.read_bytes()
    write_image(path, seed=99)
    path.write_bytes(path.read_bytes()[: len(content)].ljust(len(content), b"\0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(FileError, match="was extracted from other inputs"):
        extract(seeded(networks.Net), loader(folder), store=tmp_path / "s")


def test_a_stamp_depends_on_everything_that_the_batches_do(folder):
    stamps = [
        loader(folder).stamp(),
        loader(folder, batch_size=5).stamp(),
        loader(folder, labels=False).stamp(),
        loader(folder, skip_bad=True).stamp(),
        ImageLoader(open_images(folder), Transform(8, 8, (0.4,) * 3, (0.25,) * 3), batch_size=4).stamp(),
        ImageLoader(open_images(folder).pick([0, 1, 2]), PLAIN, batch_size=4).stamp(),
        ImageLoader(open_images(folder).pick([1, 0, 2]), PLAIN, batch_size=4).stamp(),
    ]
    assert len(set(stamps)) == len(stamps)
    assert all(re.fullmatch("[0-9a-f]{64}", stamp) for stamp in stamps)
    assert loader(folder).stamp() == stamps[0]
    (folder / "e/04.png").rename(folder / "e/06.png")
    assert loader(folder).stamp() != stamps[0]
    assert ImageLoader(open_images(folder).pick([0]), PLAIN).stamp() is not None
    gone = loader(folder)
    (folder / "e/06.png").unlink()
    assert gone.stamp() is None


def test_every_kind_of_image_set_has_a_stamp(folder, tmp_path):
    write_cifar_batch(tmp_path / "cifar" / "data_batch_1")
    write_cifar_batch(tmp_path / "cifar" / "data_batch_2", seed=1)
    archive = write_zip(folder, tmp_path / "images.zip")
    for path in (tmp_path / "cifar", archive, folder / "a/00.png"):
        before = loader(path).stamp()
        assert before == loader(path).stamp()
        os.utime(tmp_path / "cifar" / "data_batch_2" if path.name == "cifar" else path, ns=(1, 1))
        assert loader(path).stamp() != before


def test_a_store_from_which_images_were_skipped_is_read_again(folder, tmp_path):
    (folder / "d/03.png").write_bytes(b"not an image")
    for _ in range(2):
        skipping = loader(folder, skip_bad=True)
        assert len(extract(seeded(networks.Net), skipping, store=tmp_path / "s")) == 9
        assert [each.partition(":")[0] for each in skipping.skipped] == ["d/03.png"], "so that it is said every time"


def test_any_loader_may_have_a_stamp(tmp_path):
    class Loader(list):
        reads = 0

        def stamp(self):
            return "mine"

        def __iter__(self):
            Loader.reads += 1
            return super().__iter__()

    for _ in range(2):
        extract(seeded(networks.Net), Loader(batched(20, 5)), store=tmp_path / "s")
    assert Loader.reads == 1


# Mixed precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_the_network_runs_in_mixed_precision(tmp_path, amp):
    model, images = seeded(networks.Net), pictures(20)
    seen = set()
    model.body.conv2.register_forward_hook(lambda module, arguments, output: seen.add(output.dtype))
    whole = extract(model, [images])
    assert seen == {torch.float32}
    half = extract(model, [images], amp=amp, store=tmp_path / "s")
    assert amp in seen
    assert half.embedding.dtype == torch.float32
    assert half.head.same_as(whole.head)
    assert not torch.equal(half.embedding, whole.embedding)
    torch.testing.assert_close(half.embedding, whole.embedding, rtol=3e-2, atol=3e-2)
    torch.testing.assert_close(half.logits, whole.logits, rtol=3e-2, atol=3e-2)
    same(extract(model, [images], amp=amp, store=tmp_path / "s"), half)
    with pytest.raises(FileError, match=rf"another amp \({amp}, not None\)"):
        extract(model, [images], store=tmp_path / "s")


def test_what_is_no_type_for_mixed_precision_is_refused():
    with pytest.raises(ArgumentError, match=r"^amp=torch\.int8 .* one of torch\.bfloat16"):
        extract(seeded(networks.Net), [pictures(2)], amp=torch.int8)


# Gaps, and other schemas --------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """A complete store of four shards, one per batch."""
    monkeypatch.setattr(storing, "SHARD_ELEMENTS", 1)
    extract(seeded(networks.Net), batched(20, 5), store=tmp_path / "s")
    return tmp_path / "s"


def rewrite(store, **changes):
    write_record(store / "manifest.json", {**read_manifest(store), **changes})


@pytest.mark.parametrize("kept", [(0, 3), (1, 2), (3,), (0, 2)])
def test_batches_that_are_missing_in_the_middle_are_computed(shards, kept):
    entries = read_manifest(shards)["shards"]
    rewrite(shards, complete=False, shards=[entries[place] for place in kept])
    content = {entries[place]["file"]: (shards / entries[place]["file"]).read_bytes() for place in kept}
    model = seeded(networks.Net)
    sizes = []
    model.register_forward_hook(lambda module, arguments, output: sizes.append(len(output)))
    same(extract(model, batched(20, 5), store=shards), extract(seeded(networks.Net), batched(20, 5)))
    assert len([rows for rows in sizes if rows == 5]) == 4 - len(kept), "the search for the head runs smaller batches"
    assert {file: (shards / file).read_bytes() for file in content} == content


def test_a_store_of_another_schema_or_with_missing_fields_is_refused(shards):
    manifest = read_manifest(shards)
    incomplete = [{key: value for key, value in entry.items() if key != "batches"} for entry in manifest["shards"]]
    for changes, message in (({"schema": 2}, "has schema 2, this version"), ({"shards": incomplete}, "`batches`")):
        rewrite(shards, **changes)
        with pytest.raises(FileError, match=message):
            extract(seeded(networks.Net), batched(20, 5), store=shards)
        write_record(shards / "manifest.json", manifest)
