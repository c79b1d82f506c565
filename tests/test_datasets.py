"""Readers of images: original layouts, hostile files, odd pictures, and what a transform does to them."""

import os
import pickle
import struct
import zlib
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from oodles.bench import suite
from oodles.bench.datasets import (
    CIFAR,
    IMAGENET,
    ImageLoader,
    Transform,
    open_image,
    open_images,
    read_cifar,
    read_folder,
)
from oodles.errors import ArgumentError, DataError

PLAIN = Transform(8, 8, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_batch(path, rows=6, *, seed=0, labels="labels"):
    """A CIFAR batch as anybody's Python 3 would write it: protocol 2, text keys."""
    data = noise(rows, 3072, seed=seed)
    content = {"data": data, labels: [row % 10 for row in range(rows)], "filenames": ["x.png"] * rows}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return data


def python2_batch(data, labels):
    """The bytes Python 2 wrote in 2009: its strings are neither text nor bytes to Python 3."""

    def string(raw):
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    rows = b"M" + struct.pack("<H", len(data))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b") + b"tR"
        b"(K\x01(" + rows + b"M\x00\x0ct"
        b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"I00\n" + string(data.tobytes()) + b"tb"
    )
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    head = string(b"batch_label") + string(b"testing batch 1 of 1") + string(b"labels")
    return b"\x80\x02}(" + head + b"](" + numbers + b"e" + string(b"data") + array + b"u."


def pixels(images, row):
    return np.asarray(images.read(row))


# CIFAR ------------------------------------------------------------------------------------------


def test_cifar10_batches_are_read_in_order(tmp_path):
    first = write_batch(tmp_path / "cifar" / "data_batch_1", 4, seed=1)
    second = write_batch(tmp_path / "cifar" / "data_batch_2", 3, seed=2)
    write_batch(tmp_path / "cifar" / "test_batch", 5, seed=3)
    images = open_images(tmp_path / "cifar")
    assert len(images) == 7
    assert images.labels.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert images.names[4] == "data_batch_2[0]"
    for row, planes in enumerate([*first, *second]):
        by_hand = np.stack([planes[:1024], planes[1024:2048], planes[2048:]], axis=-1).reshape(32, 32, 3)
        assert np.array_equal(pixels(images, row), by_hand)
    assert len(open_images(tmp_path / "cifar" / "test_batch")) == 5


def test_cifar100_has_fine_labels_and_its_own_folder(tmp_path):
    write_batch(tmp_path / "cifar-100-python" / "train", 4, labels="fine_labels")
    write_batch(tmp_path / "cifar-100-python" / "test", 3, labels="fine_labels")
    (tmp_path / "cifar-100-python" / "meta").write_bytes(b"")
    assert len(open_images(tmp_path / "cifar-100-python")) == 4
    train, test = suite("cifar100").open_id(tmp_path)
    assert (len(train), len(test)) == (4, 3)


def test_the_pickles_of_python_2_are_read(tmp_path):
    data = noise(300, 3072)
    (tmp_path / "test_batch").write_bytes(python2_batch(data, [row % 10 for row in range(300)]))
    assert pickle.loads((tmp_path / "test_batch").read_bytes(), encoding="bytes")[b"labels"][:3] == [0, 1, 2]
    images = read_cifar(tmp_path / "test_batch")
    assert images.labels.tolist() == [row % 10 for row in range(300)]
    assert np.array_equal(pixels(images, 299)[:, :, 2].ravel(), data[299, 2048:])


class Shell:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_hostile_pickle_runs_nothing(tmp_path, protocol, wrapped):
    trace = tmp_path / "trace"
    attacks = [
        (os.system, f"touch {trace}"),
        (eval, f"open({str(trace)!r}, 'w')"),
        (exec, f"open({str(trace)!r}, 'w')"),
        (open, str(trace), "w"),
    ]
    for function, *arguments in attacks:
        bomb = Shell(function, *arguments)
        content = {"data": noise(1, 3072), "labels": [0], "more": bomb} if wrapped else bomb
        (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(DataError, match="it asks for"):
            open_images(tmp_path / "batch")
        assert not trace.exists(), function


@pytest.mark.parametrize(
    "content",
    [
        {"data": noise(2, 3072)},
        {"labels": [1, 2]},
        {"data": noise(2, 3072), "labels": [1]},
        {"data": noise(2, 3071), "labels": [1, 2]},
        {"data": np.zeros((2, 3072)), "labels": [1, 2]},
        [1, 2],
        "words",
    ],
)
def test_other_pickles_are_no_cifar_batch(tmp_path, content):
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match="is a pickle, but not a CIFAR batch"):
        open_images(tmp_path / "batch")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}", b"\x80\xff"])
def test_what_is_no_pickle_is_no_image_set(tmp_path, content):
    (tmp_path / "thing").write_bytes(content)
    with pytest.raises(DataError, match="thing is no image set"):
        open_images(tmp_path / "thing")


# SVHN -------------------------------------------------------------------------------------------


def test_svhn_digits_and_their_zero(tmp_path):
    digits = noise(32, 32, 3, 5)
    savemat(tmp_path / "test_32x32.mat", {"X": digits, "y": np.array([[1], [10], [9], [10], [5]], dtype=np.uint8)})
    images = open_images(tmp_path / "test_32x32.mat")
    assert images.labels.tolist() == [1, 0, 9, 0, 5]
    for row in range(5):
        assert np.array_equal(pixels(images, row), digits[:, :, :, row])


def test_other_mat_files_are_refused(tmp_path):
    savemat(tmp_path / "a.mat", {"Z": np.zeros(3)})
    (tmp_path / "b.mat").write_bytes(b"not matlab")
    savemat(tmp_path / "c.mat", {"X": np.zeros(3), "y": np.zeros(3)})
    for name in "abc":
        with pytest.raises(DataError, match=rf"{name}\.mat is not an SVHN file"):
            open_images(tmp_path / f"{name}.mat")


@pytest.mark.parametrize(
    ("digits", "labels"),
    [
        pytest.param(noise(32, 32, 3, 4), np.zeros((3, 1), dtype=np.uint8), id="fewer labels than digits"),
        pytest.param(np.zeros((32, 32, 3, 4)), np.zeros((4, 1), dtype=np.uint8), id="digits that are no bytes"),
    ],
)
def test_a_mat_file_that_only_looks_like_svhn_is_refused(tmp_path, digits, labels):
    savemat(tmp_path / "x.mat", {"X": digits, "y": labels})
    with pytest.raises(DataError, match=r"x"):
        list(ImageLoader(open_images(tmp_path / "x.mat"), PLAIN))


# Folders ----------------------------------------------------------------------------------------


def picture(path, *, size=(8, 8), mode="RGB", seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2}.get(mode)
    shape = (size[1], size[0]) if channels is None else (size[1], size[0], channels)
    image = Image.fromarray(noise(*shape, seed=seed), mode="L" if mode in ("1", "P") else None)
    if image.mode != mode:
        image = image.convert(mode)
    image.save(path, **options)
    return path


def test_class_folders_are_labels(tmp_path):
    for name in ("zebra/b.png", "zebra/deep/a.JPG", "ant/x.png", "bee/y.bmp"):
        picture(tmp_path / name)
    (tmp_path / "zebra" / "notes.txt").write_text("not an image")
    images = open_images(tmp_path)
    assert images.names == ["ant/x.png", "bee/y.bmp", "zebra/b.png", "zebra/deep/a.JPG"]
    assert images.classes == ("ant", "bee", "zebra")
    assert images.labels.tolist() == [0, 1, 2, 2]


def test_a_flat_folder_has_no_labels(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "sub" / "b.png")
    images = open_images(tmp_path)
    assert images.labels is None
    assert len(images) == 2
    (batch,) = ImageLoader(images, PLAIN)
    assert isinstance(batch, torch.Tensor)


def test_a_single_image_is_a_set_of_one(tmp_path):
    images = open_images(picture(tmp_path / "a.png"))
    assert images.names == [str(tmp_path / "a.png")]
    assert pixels(images, 0).shape == (8, 8, 3)


def test_nothing_there_and_nothing_in_it(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        open_images(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no images"):
        open_images(tmp_path / "empty")


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", ".png"), ("P", ".png"), ("RGBA", ".png"), ("LA", ".png"), ("1", ".png"), ("CMYK", ".jpg"), ("L", ".jpg")],
)
def test_pictures_of_every_mode_become_three_channels(tmp_path, mode, suffix):
    path = picture(tmp_path / f"a{suffix}", mode=mode)
    values = PLAIN(open_image(path))
    assert values.shape == (3, 8, 8)
    assert values.dtype == np.uint8
    with Image.open(path) as image:
        assert image.mode == mode
        assert np.array_equal(values.transpose(1, 2, 0), np.asarray(image.convert("RGB")))
    if mode in ("L", "LA", "1"):
        assert np.array_equal(values[0], values[1])


def deep_png(path, colour):
    """A 16-bit PNG of 4x4 pixels; colour type 0 is grey, 2 is RGB. Every sample is 0x1234."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    row = b"\x00" + b"\x12\x34" * 4 * (3 if colour == 2 else 1)
    header = struct.pack(">IIBBBBB", 4, 4, 16, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 4)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def test_pictures_of_sixteen_bits_are_never_clipped(tmp_path):
    with pytest.raises(DataError, match=r"more than 8 bits a channel \(mode I;16\)"):
        open_image(deep_png(tmp_path / "grey.png", 0))
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(DataError, match=r"more than 8 bits a channel \(mode F\)"):
        open_image(tmp_path / "float.tiff")
    # 16-bit colour is scaled by the decoder itself: the high byte, not a clipped white
    assert set(np.asarray(open_image(deep_png(tmp_path / "rgb.png", 2))).ravel()) == {0x12}


def test_formats_that_are_not_asked_for_are_never_parsed(tmp_path):
    picture(tmp_path / "real.gif", mode="L")
    (tmp_path / "real.gif").rename(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    loader = ImageLoader(open_images(tmp_path), PLAIN)
    with pytest.raises(DataError, match="2 of 2 images cannot be read"):
        list(loader)


def test_a_pixel_bomb_is_refused_before_it_is_decoded(tmp_path):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 8000, 8000, 8, 2, 0, 0, 0)
    # no pixel data at all: only a reader that stops at the header gets as far as counting pixels
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    with pytest.raises(DataError, match="8000 x 8000 pixels"):
        open_image(tmp_path / "bomb.png")


# The loader -------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path):
    """Nine images of which four cannot be read."""
    for number in range(5):
        picture(tmp_path / "mixed" / f"good{number}.png", seed=number)
    whole = picture(tmp_path / "big.jpg", size=(64, 64)).read_bytes()
    (tmp_path / "mixed" / "bad_cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "mixed" / "bad_empty.png").write_bytes(b"")
    (tmp_path / "mixed" / "bad_text.png").write_text("hello")
    deep_png(tmp_path / "mixed" / "bad_deep.png", 0)
    return open_images(tmp_path / "mixed")


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_unreadable_images_are_counted_and_named(mixed, batch):
    loader = ImageLoader(mixed, PLAIN, batch=batch)
    with pytest.raises(DataError, match="mixed: 4 of 9 images cannot be read") as caught:
        list(loader)
    assert Counter(name.split(":")[0] for name in loader.bad) == Counter(
        ["bad_cut.jpg", "bad_deep.png", "bad_empty.png", "bad_text.png"]
    )
    assert "bad_cut.jpg" in str(caught.value)
    assert "truncated" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_skipping_leaves_out_exactly_the_unreadable_ones(mixed, batch):
    loader = ImageLoader(mixed, PLAIN, batch=batch, skip_bad=True)
    for _ in range(2):  # the second walk forgets the first
        images = torch.cat(list(loader))
        assert loader.names == [f"good{number}.png" for number in range(5)]
        assert len(loader.bad) == 4
    for number, image in enumerate(images):
        by_hand = torch.from_numpy(noise(8, 8, 3, seed=number)).permute(2, 0, 1).float() / 255
        torch.testing.assert_close(image, by_hand)


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "nothing.png").write_bytes(b"")
    for images in (open_images(tmp_path / "set" / "nothing.png"), open_images(tmp_path / "set")):
        with pytest.raises(DataError, match=r"nothing\.png: empty file"):
            list(ImageLoader(images, PLAIN))


def test_nothing_readable_is_an_error_even_when_skipping(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.png").write_text("no")
    with pytest.raises(DataError, match="none of 2 images can be read"):
        list(ImageLoader(open_images(tmp_path), PLAIN, skip_bad=True))


def test_a_file_that_vanishes_is_named(tmp_path):
    for name in "ab":
        picture(tmp_path / f"{name}.png")
    images = open_images(tmp_path)
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"1 of 2 images cannot be read \(b\.png"):
        list(ImageLoader(images, PLAIN))


def test_labels_stay_with_their_images(tmp_path):
    for number in range(11):
        picture(tmp_path / f"class{number % 3}" / f"{number:02}.png", seed=number)
    (tmp_path / "class1" / "00.png").write_text("broken")
    images = open_images(tmp_path)
    batches = list(ImageLoader(images, PLAIN, batch=4, skip_bad=True))
    labels = torch.cat([labels for _, labels in batches]).tolist()
    assert labels == [0] * 4 + [1] * 4 + [2] * 3
    assert [len(part) for _, part in batches] == [4, 3, 4]
    assert all(isinstance(batch, torch.Tensor) for batch in ImageLoader(images, PLAIN, labels=False, skip_bad=True))


def test_breaking_off_leaves_no_threads_waiting(tmp_path):
    for number in range(9):
        picture(tmp_path / f"{number}.png")
    loader = ImageLoader(open_images(tmp_path), PLAIN, batch=2)
    assert len(loader) == 5
    walk = iter(loader)
    assert next(walk).shape == (2, 3, 8, 8)
    walk.close()


# Samples ----------------------------------------------------------------------------------------


def test_samples_are_the_same_every_time_in_order_and_of_the_right_size(tmp_path):
    write_batch(tmp_path / "c" / "test_batch", 50)
    images = read_cifar(tmp_path / "c" / "test_batch")
    first, again, other = images.sample(7), images.sample(7), images.sample(7, seed=1)
    rows = [images.names.index(name) for name in first.names]
    assert len(set(rows)) == 7
    assert rows == sorted(rows)
    assert list(first.names) == list(again.names) != list(other.names)
    assert first.labels.tolist() == [row % 10 for row in rows]
    for position, row in enumerate(rows):
        assert np.array_equal(pixels(first, position), pixels(images, row))
    assert images.sample(None) is images
    assert len(images.sample(50)) == len(images.sample(99)) == 50
    with pytest.raises(ArgumentError, match="a limit of 0 images"):
        images.sample(0)


# Transforms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 8), (8, 20), (20, 8), (1, 1), (9, 100), (101, 33)])
@pytest.mark.parametrize(("crop", "resize"), [(8, 8), (5, 8), (7, 12)])
def test_every_picture_comes_out_at_the_networks_size(size, crop, resize):
    transform = Transform(crop, resize, (0.0,) * 3, (1.0,) * 3)
    assert transform(Image.fromarray(noise(size[1], size[0], 3))).shape == (3, crop, crop)


def test_a_picture_of_the_right_size_is_left_as_it_is():
    image = noise(32, 32, 3)
    assert np.array_equal(CIFAR(Image.fromarray(image)), image.transpose(2, 0, 1))


def test_the_crop_is_the_centre():
    image = noise(12, 20, 3)
    cropped = Transform(6, 12, (0.0,) * 3, (1.0,) * 3)(Image.fromarray(image))
    assert np.array_equal(cropped, image[3:9, 7:13].transpose(2, 0, 1))


def test_the_shorter_side_is_resized_and_the_shape_kept():
    # left half black, right half white: after 40x20 -> 20x10 and the centre crop the edge is in the middle
    image = np.zeros((20, 40, 3), dtype=np.uint8)
    image[:, 20:] = 255
    cropped = Transform(10, 10, (0.0,) * 3, (1.0,) * 3)(Image.fromarray(image))
    assert (cropped[:, :, :4] == 0).all()
    assert (cropped[:, :, 6:] == 255).all()


def test_normalising_is_by_channel():
    values = np.stack([np.full((3, 2, 2), level, dtype=np.uint8) for level in (0, 255, 51)])
    normal = IMAGENET.normalise(values)
    for channel, (mean, std) in enumerate(zip(IMAGENET.mean, IMAGENET.std, strict=True)):
        for row, level in enumerate((0.0, 1.0, 0.2)):
            torch.testing.assert_close(normal[row, channel], torch.full((2, 2), (level - mean) / std))


def test_transforms_that_make_no_sense_are_refused():
    with pytest.raises(ArgumentError, match="size=9 must lie between 1 and resize=8"):
        Transform(9, 8, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ArgumentError, match="size=0"):
        Transform(0, 8, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ArgumentError, match="must be positive"):
        Transform(8, 8, (0.0,) * 3, (1.0, 0.0, 1.0))


# Suites -----------------------------------------------------------------------------------------


def test_a_suite_opens_what_is_there_and_names_what_is_not(tmp_path):
    write_batch(tmp_path / "cifar-10-batches-py" / "data_batch_1")
    write_batch(tmp_path / "cifar-10-batches-py" / "test_batch", 3)
    picture(tmp_path / "iSUN" / "a.png")
    cifar10 = suite("cifar10")
    train, test = cifar10.open_id(tmp_path)
    assert (len(train), len(test)) == (6, 3)
    assert list(cifar10.open_ood(tmp_path)) == ["isun"]
    assert set(cifar10.missing(tmp_path)) == set(cifar10.ood) - {"isun"}
    with pytest.raises(DataError, match=r"has no cifar-100-python/train, which the suite cifar100 needs"):
        suite("cifar100").open_id(tmp_path)
    with pytest.raises(ArgumentError, match="there are cifar10, cifar100"):
        suite("mnist")


# Real data --------------------------------------------------------------------------------------


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("part", "rows", "classes"),
    [
        ("cifar-10-batches-py", 8336, 10),
        ("cifar-10-batches-py/test_batch", 1017, 10),
        ("cifar-100-python", 1117, 100),
        ("cifar-100-python/test", 916, 100),
        ("svhn/test_32x32.mat", 5000, 10),
        ("dtd/images", 1200, 10),
        ("places365/images", 3000, None),
        ("places_crop/images", 3000, None),
    ],
)
def test_the_real_sets_are_read_whole(data, part, rows, classes):
    images = open_images(data / part)
    assert len(images) == rows
    if classes is None:
        assert images.labels is None
    else:
        assert sorted(set(images.labels.tolist())) == list(range(classes))
    few = images.sample(5)
    batch = next(iter(ImageLoader(few, CIFAR, labels=False)))
    assert batch.shape == (5, 3, 32, 32)
    assert 0.1 < float(batch.std()) < 3


@pytest.mark.realdata
def test_the_folder_reader_agrees_with_pillow_on_real_pictures(data):
    images = read_folder(data / "dtd" / "images").sample(3)
    (batch,) = ImageLoader(images, Transform(32, 32, (0.0,) * 3, (1.0,) * 3), labels=False)
    for row, name in enumerate(images.names):
        with Image.open(data / "dtd" / "images" / name) as image:
            wanted = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
        torch.testing.assert_close(batch[row], wanted)
