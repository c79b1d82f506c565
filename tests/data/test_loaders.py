"""Loaders: decoding in advance, unreadable images, and labelled sets decoded into memory."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.images import PLAIN, noise, write_16_bit_png, write_image
from support.training_worker import coloured

from oodles.data.loaders import ImageLoader, read_pixels
from oodles.data.readers import ImageSet, open_images
from oodles.data.transforms import CIFAR, Transform
from oodles.errors import ArgumentError, DataError

# Batches ----------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path):
    """Nine images of which four cannot be read."""
    for number in range(5):
        write_image(tmp_path / "mixed" / f"good{number}.png", seed=number)
    whole = write_image(tmp_path / "big.jpg", size=(64, 64)).read_bytes()
    (tmp_path / "mixed" / "bad_cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "mixed" / "bad_empty.png").write_bytes(b"")
    (tmp_path / "mixed" / "bad_text.png").write_text("hello")
    write_16_bit_png(tmp_path / "mixed" / "bad_deep.png", 0)
    return open_images(tmp_path / "mixed")


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_unreadable_images_are_counted_and_named(mixed, batch):
    loader = ImageLoader(mixed, PLAIN, batch_size=batch)
    with pytest.raises(DataError, match="mixed: 4 of 9 images cannot be read") as caught:
        list(loader)
    names = sorted(each.partition(":")[0] for each in loader.skipped)
    assert names == ["bad_cut.jpg", "bad_deep.png", "bad_empty.png", "bad_text.png"]
    assert "bad_empty.png: empty file" in loader.skipped
    assert "bad_cut.jpg" in str(caught.value)
    assert "truncated" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_only_unreadable_images_are_skipped(mixed, batch):
    loader = ImageLoader(mixed, PLAIN, batch_size=batch, skip_bad=True)
    for _ in range(2):  # a second iteration starts over
        images = torch.cat(list(loader))
        assert loader.names == [f"good{number}.png" for number in range(5)]
        assert len(loader.skipped) == 4
    for number, image in enumerate(images):
        expected = torch.from_numpy(noise(8, 8, 3, seed=number)).permute(2, 0, 1).float() / 255
        torch.testing.assert_close(image, expected)


def test_nothing_readable_is_an_error_even_when_skipping(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.png").write_text("no")
    with pytest.raises(DataError, match=r"none of 2 images can be read \(a\.png: .*; b\.png:"):
        list(ImageLoader(open_images(tmp_path), PLAIN, skip_bad=True))


def test_a_problem_is_one_line_even_if_the_error_says_nothing_or_more():
    errors = [MemoryError(), ValueError("first line\n  second line")]

    def opened(row):
        raise errors[row]

    loader = ImageLoader(ImageSet("set", ["a", "b"], opened), PLAIN, skip_bad=True)
    with pytest.raises(DataError, match="none of 2 images"):
        list(loader)
    assert loader.skipped == ["a: MemoryError", "b: first line"]


@pytest.mark.parametrize("argument", ["batch_size", "workers"])
@pytest.mark.parametrize("value", [0, -1])
def test_batches_and_workers_are_at_least_one(mixed, argument, value):
    with pytest.raises(ArgumentError, match=f"{argument}={value} .*must both be at least 1"):
        ImageLoader(mixed, PLAIN, **{argument: value})


def test_class_names_are_the_folders_that_the_labels_number(tmp_path):
    for name in ("set/dog/1.png", "set/cat/2.png", "flat/3.png"):
        write_image(tmp_path / name)
    images = open_images(tmp_path / "set")
    assert ImageLoader(images, PLAIN).class_names == ("cat", "dog")
    assert ImageLoader(images.sample(1), PLAIN).class_names == ("cat", "dog")
    assert ImageLoader(images, PLAIN, labels=False).class_names == ()
    assert ImageLoader(open_images(tmp_path / "flat"), PLAIN).class_names == ()


def test_labels_stay_with_their_images(tmp_path):
    for number in range(11):
        write_image(tmp_path / f"class{number % 3}" / f"{number:02}.png", seed=number)
    (tmp_path / "class1" / "00.png").write_text("broken")
    images = open_images(tmp_path)
    batches = list(ImageLoader(images, PLAIN, batch_size=4, skip_bad=True))
    labels = torch.cat([labels for _, labels in batches]).tolist()
    assert labels == [0] * 4 + [1] * 4 + [2] * 3
    assert [len(part) for _, part in batches] == [4, 3, 4]
    assert all(isinstance(batch, torch.Tensor) for batch in ImageLoader(images, PLAIN, labels=False, skip_bad=True))


def test_the_next_two_batches_are_decoded_in_advance(tmp_path):
    for number in range(12):
        write_image(tmp_path / f"{number:02}.png")
    images, done, ready = open_images(tmp_path), set(), threading.Event()

    @contextmanager
    def opened(row):
        with images.open(row) as image:
            yield image
        done.add(row)
        if len(done) == 9:
            ready.set()

    iterator = iter(ImageLoader(replace(images, open=opened), PLAIN, batch_size=3))
    next(iterator)  # then request nothing more, as while the network runs
    assert ready.wait(timeout=20)
    iterator.close()
    assert done == set(range(9)), "two batches ahead and no more"


# Images in memory -------------------------------------------------------------------------------


def test_pixels_equal_what_pillow_decodes(tmp_path):
    expected = []
    for number in range(6):
        path = tmp_path / "set" / ("cat", "dog")[number // 3] / f"{number}.png"
        image = Image.open(write_image(path, size=(14, 11), seed=number))
        small = image.resize((10, 8), Image.Resampling.BILINEAR).crop((2, 1, 8, 7))
        expected.append(np.asarray(small).transpose(2, 0, 1))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    data = read_pixels(open_images(tmp_path / "set"), Transform(6, 8, mean, std))
    assert data.pixels.dtype == torch.uint8
    assert np.array_equal(data.pixels.numpy(), np.stack(expected))
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.name, data.classes, len(data)) == ("set", ("cat", "dog"), 6)
    floats = (data.pixels.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(data.normalise(data.pixels).double(), floats, rtol=1e-5, atol=1e-5)


def changed(tensor, *place):
    copied = tensor.clone()
    copied[place] = (copied[place] + 1) % 3
    return copied


def test_a_fingerprint_depends_on_pixels_labels_and_transform():
    data = coloured(12)
    others = [
        replace(data, pixels=changed(data.pixels, 3, 1, 4, 5)),
        replace(data, labels=changed(data.labels, 7)),
        replace(data, transform=replace(data.transform, mean=(0.5, 0.5, 0.4))),
        replace(data, transform=replace(data.transform, resize=9)),
        replace(data, pixels=data.pixels.flip(0), labels=data.labels.flip(0)),
    ]
    assert len({data.fingerprint(), *(other.fingerprint() for other in others)}) == 6
    strided = data.pixels.transpose(2, 3).contiguous().transpose(2, 3)
    assert not strided.is_contiguous()
    assert replace(data, name="elsewhere", pixels=strided).fingerprint() == data.fingerprint()


def test_more_images_than_fit_in_memory_are_refused_before_one_is_read():
    def opened(row):
        raise AssertionError(row)

    labels = np.arange(10_000) % 2
    images = ImageSet("huge", [str(row) for row in range(10_000)], opened, labels)
    with pytest.raises(DataError, match=r"10,000 images of 1000x1000 take 30 GB decoded"):
        read_pixels(images, Transform(1000, 1000, CIFAR.mean, CIFAR.std))


def test_images_that_vanish_raise_or_are_skipped(tmp_path):
    for name in ("cat/a.png", "cat/b.png", "dog/c.png"):
        write_image(tmp_path / name)
    images = open_images(tmp_path)
    (tmp_path / "cat" / "b.png").unlink()  # since it was listed
    with pytest.raises(DataError, match=r"1 of 3 images cannot be read \(cat/b\.png"):
        read_pixels(images, PLAIN)
    assert read_pixels(images, PLAIN, skip_bad=True).labels.tolist() == [0, 1]
