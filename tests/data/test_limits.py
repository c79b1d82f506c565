"""Limits on what files of images cost: members of zips, many large images at once, files that are too large."""

import re
import threading
import time
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from support.images import write_image, write_zip

from oodles.data import limits, readers
from oodles.data.limits import MAX_BYTES, SharedLimit
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR, Transform
from oodles.errors import DataError, FileError

# SharedLimit -------------------------------------------------------------------------------------


def test_threads_never_hold_more_than_there_is():
    limit, held, most, lock = SharedLimit(10), [0], [0], threading.Lock()

    def work(amount):
        with limit.take(amount):
            with lock:
                held[0] += min(amount, 10)
                most[0] = max(most[0], held[0])
            time.sleep(0.002)
            with lock:
                held[0] -= min(amount, 10)

    threads = [threading.Thread(target=work, args=(amount,)) for amount in [1, 4, 10, 3, 99, 7, 2, 5] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert 5 < most[0] <= 10


def test_what_fails_gives_its_room_back():
    limit = SharedLimit(10)
    for _ in range(3):
        with pytest.raises(KeyError), limit.take(10):
            raise KeyError


def test_large_images_are_decoded_in_turn(tmp_path, monkeypatch):
    """Pixels that are decoded, and those that thin images are resized to, count alike."""
    for number in range(6):
        write_image(tmp_path / f"{number}.png", size=(100, 100))
        write_image(tmp_path / f"thin{number}.png", size=(1, 300))
    taken, now, lock = [], [0], threading.Lock()

    class Watched(SharedLimit):
        def take(self, amount):
            taken.append(amount)
            return super().take(amount)

    def decode(image):
        with lock:
            now[0] += 1
            assert now[0] == 1
        time.sleep(0.005)
        with lock:
            now[0] -= 1
        return image

    monkeypatch.setattr("oodles.data.decoding.PIXELS", Watched(9000))
    monkeypatch.setattr("oodles.data.decoding.decode", decode)
    list(ImageLoader(open_images(tmp_path), Transform(8, 8, CIFAR.mean, CIFAR.std), workers=6))
    assert sorted(taken) == [10_000] * 6 + [8 * 2400] * 6
    with pytest.raises(DataError, match=r"2 of 2 images cannot be read"):
        list(ImageLoader(open_images(tmp_path).pick([0, 1]), Transform(8_192, 8_192, CIFAR.mean, CIFAR.std)))


def test_a_file_larger_than_any_image_is_not_opened(tmp_path):
    with (tmp_path / "huge.webp").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match=r"huge\.webp has 200,000,001 bytes, more than 200,000,000"):
        list(ImageLoader(open_images(tmp_path), CIFAR))


@pytest.mark.parametrize(("name", "size"), [("train", readers.MAX_CIFAR), ("x.mat", 2_000_000_000)])
def test_a_file_larger_than_any_set_is_not_read(tmp_path, name, size):
    with (tmp_path / name).open("wb") as file:
        file.truncate(size + 1)
    with pytest.raises(FileError, match=rf"{re.escape(name)} has {size + 1:,} bytes, more than the {size:,}"):
        open_images(tmp_path / name)


# Zips -------------------------------------------------------------------------------------------


def write_lying_zip(path, method, stated=1000):
    """An archive whose member states 1000 bytes and unpacks to 6 million; the checksum is that of the 1000."""
    real = np.random.default_rng(0).bytes(30_000)
    real = bytes(np.repeat(np.frombuffer(real, np.uint8), 200))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.png", real)
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        start = content.index(signature) + place
        content[start : start + 4] = zlib.crc32(real[:stated]).to_bytes(4, "little")
        content[start + 8 : start + 12] = stated.to_bytes(4, "little")
    path.write_bytes(content)
    return path


def test_a_member_that_lies_about_its_size_is_not_unpacked(tmp_path):
    images = open_images(write_lying_zip(tmp_path / "t.zip", zipfile.ZIP_DEFLATED))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="not an image in a supported format"):
            images.read(0)
        assert tracemalloc.get_traced_memory()[1] < 3e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_packed_with_other_methods_are_refused(tmp_path, method):
    """45 bytes of bzip2 can unpack to 45 million, whatever the size that is asked for."""
    images = open_images(write_lying_zip(tmp_path / "t.zip", method))
    with pytest.raises(DataError, match="packed with an unusual method"):
        images.read(0)


def test_a_bomb_spread_over_many_members_is_refused(tmp_path):
    """Every member stays below the limit for one, and all of them together do not."""
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", bytes(1000))
        for number in range(1, 7):
            archive.writestr(f"{number}.png", b"")
    content = bytearray((tmp_path / "t.zip").read_bytes())
    for found in re.finditer(rb"PK\x01\x02", content):  # as if each held 190 million bytes
        content[found.start() + 24 : found.start() + 28] = (190_000_000).to_bytes(4, "little")
    (tmp_path / "t.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.zip has [\d,]+ bytes and would unpack to 1,330,000,000"):
        open_images(tmp_path / "t.zip")


def test_large_members_are_held_in_turn(tmp_path, monkeypatch):
    for number in range(8):
        write_image(tmp_path / "set" / f"{number}.png", size=(40, 40), seed=number)
    write_zip(tmp_path / "set", tmp_path / "t.zip")
    monkeypatch.setattr(readers, "FILE_BYTES", limits.SharedLimit(1))  # less than one file, so one at a time
    for path in (tmp_path / "t.zip", tmp_path / "set"):
        assert len(next(iter(ImageLoader(open_images(path), CIFAR, workers=8)))) == 8
