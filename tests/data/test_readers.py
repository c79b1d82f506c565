"""Readers of images: the original file layouts, hostile and damaged files, unusual image modes."""

import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image, features
from scipy.io import savemat
from support.images import (
    PLAIN,
    noise,
    open_image,
    png_chunk,
    read_array,
    write_16_bit_png,
    write_cifar_batch,
    write_image,
    write_zip,
)

from oodles.data import readers
from oodles.data.loaders import ImageLoader
from oodles.data.readers import FORMATS, SUFFIXES_OF, first_per_class, open_images, read_cifar, read_zip
from oodles.data.transforms import CIFAR
from oodles.errors import ArgumentError, DataError

# CIFAR ------------------------------------------------------------------------------------------


def python2_batch(data, labels):
    """A batch as Python 2 pickled it in 2009, with strings that are neither str nor bytes in Python 3."""

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


def test_cifar_batches_are_read_in_order(tmp_path):
    first = write_cifar_batch(tmp_path / "cifar" / "data_batch_1", 4, seed=1)
    second = write_cifar_batch(tmp_path / "cifar" / "data_batch_2", 3, seed=2)
    write_cifar_batch(tmp_path / "cifar" / "test_batch", 5, seed=3)
    write_cifar_batch(tmp_path / "cifar" / "data_batch_2 (copy)", 3, seed=2)
    images = open_images(tmp_path / "cifar")
    assert len(images) == 7
    assert images.labels.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert images.names[4] == "data_batch_2[0]"
    for row, planes in enumerate([*first, *second]):
        expected = np.stack([planes[:1024], planes[1024:2048], planes[2048:]], axis=-1).reshape(32, 32, 3)
        assert np.array_equal(read_array(images, row), expected)
    assert len(open_images(tmp_path / "cifar" / "test_batch")) == 5
    write_cifar_batch(tmp_path / "cifar-100" / "train", 4, labels="fine_labels")
    (tmp_path / "cifar-100" / "meta").write_bytes(b"")
    assert len(open_images(tmp_path / "cifar-100")) == 4


def test_python_2_pickles_are_read(tmp_path):
    data = noise(300, 3072)
    (tmp_path / "test_batch").write_bytes(python2_batch(data, [row % 10 for row in range(300)]))
    assert pickle.loads((tmp_path / "test_batch").read_bytes(), encoding="bytes")[b"labels"][:3] == [0, 1, 2]
    images = read_cifar(tmp_path / "test_batch")
    assert images.labels.tolist() == [row % 10 for row in range(300)]
    assert np.array_equal(read_array(images, 299)[:, :, 2].ravel(), data[299, 2048:])


@pytest.mark.parametrize("protocol", range(6))
def test_python_3_pickles_are_read(tmp_path, protocol):
    content = {b"data": np.asfortranarray(noise(2, 3072)), b"fine_labels": np.array([3, 1]), "batch_label": "x"}
    (tmp_path / "train").write_bytes(pickle.dumps(content, protocol=protocol))
    images = open_images(tmp_path / "train")
    assert images.labels.tolist() == [3, 1]
    assert np.array_equal(read_array(images, 1)[:, :, 1].ravel(), noise(2, 3072)[1, 1024:2048])


def test_pickles_of_numpy_1_are_read(tmp_path):
    content = pickle.dumps({"data": noise(2, 3072), "labels": [1, 2]}, protocol=5)
    old = content.replace(b"\x8c\x13numpy._core.numeric", b"\x8c\x12numpy.core.numeric")
    start = old.index(b"\x95") + 1
    (frame,) = struct.unpack_from("<Q", old, start)
    old = old[:start] + struct.pack("<Q", frame - 1) + old[start + 8 :]  # the module name is one character shorter
    (tmp_path / "test_batch").write_bytes(old)
    assert open_images(tmp_path / "test_batch").labels.tolist() == [1, 2]


class Payload:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_hostile_pickle_runs_nothing(tmp_path, protocol, wrapped):
    trace = tmp_path / "trace"
    attacks = [
        (os.system, f"touch {trace}"),
        (eval, f"open({str(trace)!r}, 'w')"),
        (exec, f"open({str(trace)!r}, 'w')"),
        (open, str(trace), "w"),
        (np.load, str(trace)),
        (np.memmap, str(trace), "u1", "w+", 0, 4),
    ]
    for function, *arguments in attacks:
        bomb = Payload(function, *arguments)
        content = {"data": noise(1, 3072), "labels": [0], "more": bomb} if wrapped else bomb
        (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(DataError, match="it refers to"):
            open_images(tmp_path / "test_batch")
        assert not trace.exists(), function


@pytest.mark.parametrize(
    "content",
    [
        {"data": noise(1, 3072)[:0], "labels": []},
        {"data": noise(2, 3072)},
        {"labels": [1, 2]},
        {"data": noise(2, 3072), "labels": [1]},
        {"data": noise(2, 3071), "labels": [1, 2]},
        {"data": np.zeros((2, 3072)), "labels": [1, 2]},
        {"data": noise(2, 3072), "labels": ["cat", "dog"]},
        {"data": noise(2, 3072), "labels": [[1], [2]]},
        {"data": noise(2, 3072), "labels": [[1], [2, 3]]},
        {"data": noise(2, 3072), "labels": 1},
        [1, 2],
        "words",
    ],
)
def test_pickles_that_are_not_cifar_batches_are_refused(tmp_path, content):
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=r"test_batch is (a pickle, but )?not a CIFAR batch"):
        open_images(tmp_path / "test_batch")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}", b"\x80\xff"])
def test_files_of_unknown_formats_are_refused(tmp_path, content):
    for name in ("test_batch", "thing"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch is not a CIFAR batch \("):
        open_images(tmp_path / "test_batch")
    with pytest.raises(DataError, match="thing is not an image set that oodles reads"):
        open_images(tmp_path / "thing")


@pytest.mark.parametrize(
    "name", ["batch", "test_batch.pkl", "data_batch", "data_batch_1 (copy)", "meta", "batches.meta"]
)
def test_only_files_named_as_cifar_batches_are_read_as_such(tmp_path, name):
    write_cifar_batch(tmp_path / "test_batch", 3)
    (tmp_path / "test_batch").rename(tmp_path / name)
    with pytest.raises(DataError, match="is not an image set that oodles reads"):
        open_images(tmp_path / name)


def test_the_first_images_of_every_class_are_taken_in_file_order(tmp_path):
    numbers = [1, 10, 1, 2, 1, 10, 10, 10, 3]
    digits = noise(32, 32, 3, len(numbers))
    savemat(tmp_path / "x.mat", {"X": digits, "y": np.array(numbers, dtype=np.uint8)[:, None]})
    few = first_per_class(open_images(tmp_path / "x.mat"), 2)
    assert few.labels.tolist() == [1, 0, 1, 2, 0, 3]
    assert few.names == [f"x.mat[{row}]" for row in (0, 1, 2, 3, 5, 8)]
    assert np.array_equal(read_array(few, 4), digits[:, :, :, 5])
    assert first_per_class(few, 2).names == few.names
    with pytest.raises(ArgumentError, match="a limit of 0 images per class"):
        first_per_class(few, 0)
    with pytest.raises(DataError, match=r"a\.png has no labels"):
        first_per_class(open_images(write_image(tmp_path / "a.png")), 2)


# Folders ----------------------------------------------------------------------------------------


def test_class_folders_are_labels_and_names_are_sorted_folder_by_folder(tmp_path):
    names = ["a/x.png", "a b/z.png", "a-b/y.bmp", "zebra/b.png", "zebra/deep/a.JPG"]
    for name in (*names[3:], *names[:3]):
        write_image(tmp_path / name)
    images = open_images(tmp_path)
    assert images.names == names
    assert images.classes == ("a", "a b", "a-b", "zebra")
    assert images.labels.tolist() == [0, 1, 2, 3, 3]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    for name in ("a/1.png", "b/2.png"):
        write_image(tmp_path / name)
    scandir = os.scandir

    def refuse(path):
        if str(path) == str(tmp_path / "b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"b cannot be listed \(Permission denied\)"):
        open_images(tmp_path)


def test_missing_and_empty_folders_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, fact in (("nowhere", "does not exist"), ("empty", "holds no images")):
        with pytest.raises(DataError, match=f"{name} {fact}"):
            open_images(tmp_path / name)


# Single images ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", ".png"), ("P", ".png"), ("RGBA", ".png"), ("LA", ".png"), ("1", ".png"), ("CMYK", ".jpg"), ("L", ".jpg")],
)
def test_images_of_every_mode_become_three_channels(tmp_path, mode, suffix):
    path = write_image(tmp_path / f"a{suffix}", mode=mode)
    values = PLAIN(open_image(path))
    assert values.shape == (3, 8, 8)
    assert values.dtype == np.uint8
    with Image.open(path) as image:
        assert image.mode == mode
        assert np.array_equal(values.transpose(1, 2, 0), np.asarray(image.convert("RGB")))
    if mode in ("L", "LA", "1"):
        assert np.array_equal(values[0], values[1])


@pytest.mark.parametrize(("kind", "suffix"), [(kind, suffix) for kind in SUFFIXES_OF for suffix in SUFFIXES_OF[kind]])
@pytest.mark.parametrize("upper", [False, True])
def test_every_format_is_read_as_pillow_reads_it(tmp_path, kind, suffix, upper):
    path = tmp_path / ("a" + (suffix.upper() if upper else suffix))
    Image.fromarray(noise(9, 12, 3)).save(path, kind)
    images = open_images(tmp_path)
    assert images.names == [path.name]
    assert images.ignored == ()
    with Image.open(path) as expected:
        assert expected.format == kind
        assert np.array_equal(np.asarray(images.read(0).convert("RGB")), np.asarray(expected.convert("RGB")))
    alone = open_images(path)
    assert (alone.names, alone.read(0).size) == ([str(path)], (12, 9))


def test_the_optional_decoders_of_this_pillow_are_used():
    assert {"GIF", "JPEG", "PNG"} <= set(FORMATS)
    for kind, feature in (("AVIF", "avif"), ("JPEG2000", "jpg_2000"), ("WEBP", "webp")):
        supported = feature in features.get_supported()
        assert (kind in FORMATS) == supported
    # an older Pillow warns if it is asked for a decoder that came later
    assert readers._decodes("a_later_decoder") is False


@pytest.mark.parametrize("kind", ["MPO", *(kind for kind in ("GIF", "PNG", "TIFF", "WEBP", "AVIF") if kind in FORMATS)])
def test_of_an_animation_the_first_frame_is_read(tmp_path, kind):
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    path = tmp_path / f"a{SUFFIXES_OF.get(kind, ['.jpg'])[0]}"  # an MPO is a photo of a phone
    red.save(path, kind, save_all=True, append_images=[blue])
    with Image.open(path) as image:
        assert image.n_frames == 2
    first = PLAIN(open_image(path))
    assert first[0].min() > 240
    assert first[1:].max() < 15


@pytest.mark.parametrize("kind", [kind for kind in ("JPEG", "PNG", "AVIF") if kind in FORMATS])
def test_a_rotated_photo_is_turned_upright(tmp_path, kind):
    stored = Image.new("RGB", (16, 8), "red")
    stored.paste("blue", (0, 0, 8, 8))
    exif = Image.Exif()
    exif[274] = 6  # the left side of what is stored is the top
    path = tmp_path / f"a{SUFFIXES_OF[kind][0]}"
    stored.save(path, kind, exif=exif)
    upright = np.asarray(open_image(path).convert("RGB")).astype(int)
    assert upright.shape == (16, 8, 3)
    assert np.all(upright[:7, :, 2] > upright[:7, :, 0])
    assert np.all(upright[9:, :, 0] > upright[9:, :, 2])


@pytest.mark.parametrize(("suffix", "opacity"), [(".gif", 2), (".png", 2), (".png", bytes([255, 128, 0, 255]))])
def test_a_palette_with_transparency_keeps_its_colours(tmp_path, suffix, opacity):
    image = Image.fromarray(noise(8, 8, 3)).quantize(4)
    image.save(tmp_path / f"a{suffix}", transparency=opacity)
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(PLAIN(open_image(tmp_path / f"a{suffix}")), expected)


def test_16_bit_images_are_never_clipped(tmp_path):
    with pytest.raises(DataError, match=r"more than 8 bits per channel \(mode I;16\)"):
        open_image(write_16_bit_png(tmp_path / "grey.png", 0))
    deep = Image.fromarray(noise(4, 4).astype(np.uint16) * 256)
    for kind in ("TIFF", *(kind for kind in FORMATS if kind == "JPEG2000")):
        deep.save(tmp_path / "deep", kind)
        with pytest.raises(DataError, match=r"more than 8 bits per channel \(mode I;16"):
            open_image(tmp_path / "deep")
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(DataError, match=r"more than 8 bits per channel \(mode F\)"):
        open_image(tmp_path / "float.tiff")
    # the decoder scales 16-bit colour itself: the high byte, not a clipped white
    assert set(np.asarray(open_image(write_16_bit_png(tmp_path / "rgb.png", 2))).ravel()) == {0x12}


def test_unsupported_formats_are_never_parsed(tmp_path):
    assert set(FORMATS) <= {"JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF", "JPEG2000"}
    write_image(tmp_path / "real.pcx")
    (tmp_path / "real.pcx").rename(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    loader = ImageLoader(open_images(tmp_path), PLAIN)
    with pytest.raises(DataError, match="2 of 2 images cannot be read"):
        list(loader)


def test_a_pixel_bomb_is_refused_before_it_is_decoded(tmp_path):
    header = struct.pack(">IIBBBBB", 8000, 8000, 8, 2, 0, 0, 0)
    # there is no pixel data: only a reader that checks the header first can report the size
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")
    )
    with pytest.raises(DataError, match="8000 x 8000 pixels"):
        open_image(tmp_path / "bomb.png")
    header = struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0)
    (tmp_path / "bomb.gif").write_bytes(b"GIF89a" + header + b"," + struct.pack("<HHHHB", 0, 0, 9, 9, 0) + b"\x08\x00;")
    with pytest.raises(DataError, match="more than 50,000,000 pixels"):
        open_image(tmp_path / "bomb.gif")


# Zip archives -----------------------------------------------------------------------------------


TREE = ("train/zebra/b.png", "train/zebra/deep/a.JPG", "train/ant/x.png", "test/ant/y.bmp", "test/bee/z.png")


@pytest.fixture
def tree(tmp_path):
    for seed, name in enumerate(TREE):
        write_image(tmp_path / "tree" / name, seed=seed)
    (tmp_path / "tree" / "train" / "notes.txt").write_text("not an image")
    return tmp_path / "tree"


@pytest.mark.parametrize("inner", ["", "train", "test", "train/zebra"])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_read_like_its_folder(tree, tmp_path, inner, compression):
    write_zip(tree, tmp_path / "t.ZIP", compression)
    plain, packed = open_images(tree / inner), open_images(tmp_path / "t.ZIP" / inner)
    assert packed.name == ("t.ZIP/" + inner if inner else "t.ZIP")
    assert packed.names == plain.names
    assert packed.classes == plain.classes
    assert packed.ignored == plain.ignored == ({"": ("train/notes.txt",), "train": ("notes.txt",)}.get(inner, ()))
    assert packed.label_note.removeprefix(packed.name) == plain.label_note.removeprefix(plain.name)
    assert (packed.labels is None) == (plain.labels is None)
    assert packed.labels is None or packed.labels.tolist() == plain.labels.tolist()
    for row in range(len(plain)):
        assert np.array_equal(read_array(packed, row), read_array(plain, row))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["t.ZIP", "tree"]


def test_a_folder_may_be_called_zip(tree, tmp_path):
    tree.rename(tmp_path / "folder.zip")
    assert len(open_images(tmp_path / "folder.zip" / "train")) == 3


def test_many_threads_read_one_zip(tmp_path):
    for number in range(60):
        write_image(tmp_path / "many" / f"{number:02}.png", seed=number)
    images = read_zip(write_zip(tmp_path / "many", tmp_path / "many.zip"))
    batch = torch.cat(list(ImageLoader(images, PLAIN, batch_size=7, workers=8)))
    for number, image in enumerate(batch):
        expected = torch.from_numpy(noise(8, 8, 3, seed=number)).permute(2, 0, 1).float() / 255
        torch.testing.assert_close(image, expected)


def test_a_zip_without_images_in_the_folder_is_refused(tree, tmp_path):
    write_zip(tree, tmp_path / "t.zip")
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    for name in ("t.zip/val", "t.zip/tra", "empty.zip"):
        with pytest.raises(DataError, match=rf"{name} holds no images"):
            open_images(tmp_path / name)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_zip_is_refused(tree, tmp_path, keep):
    path = write_zip(tree, tmp_path / "t.zip")
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(DataError, match=r"t\.zip is not a complete zip archive \(.+\)") as caught:
        open_images(path)
    assert "\n" not in str(caught.value)


def test_a_bad_member_is_named(tmp_path):
    for number in range(4):
        write_image(tmp_path / "set" / f"{number}.png", seed=number)
    (tmp_path / "set" / "empty.png").write_bytes(b"")
    (tmp_path / "set" / "text.png").write_text("hello")
    path = write_zip(tmp_path / "set", tmp_path / "t.zip", zipfile.ZIP_STORED)
    content = path.read_bytes()
    whole = (tmp_path / "set" / "2.png").read_bytes()
    path.write_bytes(content.replace(whole, whole[:-20] + b"\x00" * 20))
    loader = ImageLoader(open_images(path), PLAIN)
    with pytest.raises(DataError, match=r"3 of 6 images cannot be read \(2\.png: damaged"):
        list(loader)
    assert loader.skipped[1:] == [
        "empty.png: empty file",
        f"text.png: not an image in a supported format ({', '.join(FORMATS)})",
    ]
    left = ImageLoader(open_images(path), PLAIN, skip_bad=True)
    assert len(torch.cat(list(left))) == 3


def test_an_oversized_member_is_refused(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("bomb.png", "w") as member,
    ):
        for _ in range(201):
            member.write(bytes(1_000_000))
    with pytest.raises(DataError, match=r"201,000,000 bytes unpacked, more than 200,000,000"):
        list(ImageLoader(open_images(tmp_path / "t.zip"), PLAIN))


def test_samples_are_reproducible_and_in_order(tmp_path):
    write_cifar_batch(tmp_path / "c" / "test_batch", 50)
    images = read_cifar(tmp_path / "c" / "test_batch")
    first, again, other = images.sample(7), images.sample(7), images.sample(7, seed=1)
    rows = [images.names.index(name) for name in first.names]
    assert len(set(rows)) == 7
    assert rows == sorted(rows)
    assert list(first.names) == list(again.names) != list(other.names)
    assert first.labels.tolist() == [row % 10 for row in rows]
    for position, row in enumerate(rows):
        assert np.array_equal(read_array(first, position), read_array(images, row))
    assert images.sample(None) is images
    assert len(images.sample(50)) == len(images.sample(99)) == 50
    with pytest.raises(ArgumentError, match="a limit of 0 images"):
        images.sample(0)


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
        ("cifar10-jpeg.zip/train", 50_000, 10),
        ("cifar10-jpeg.zip/test", 10_000, 10),
        ("places365/images", 3000, None),
        ("places_crop/images", 3000, None),
    ],
)
def test_the_real_sets_are_read_completely(data, part, rows, classes):
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
