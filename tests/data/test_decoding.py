"""Batches of pixels as NumPy arrays: the same pixels as a loader's, with unreadable images reported."""

import numpy as np
import pytest
from support.images import PLAIN, noise, write_image

from oodles.data.decoding import ImageDecoder
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import Transform
from oodles.errors import ArgumentError, DataError


@pytest.fixture
def photos(tmp_path):
    """Seven images, one of which cannot be read."""
    for number in range(6):
        write_image(tmp_path / "photos" / f"{number}.png", size=(8 + number, 12), seed=number)
    (tmp_path / "photos" / "2-broken.png").write_text("no image")
    return open_images(tmp_path / "photos")


@pytest.mark.parametrize("workers", [1, 3])
def test_names_stay_with_their_pixels(photos, workers):
    decoder = ImageDecoder(photos, PLAIN, batch_size=3, workers=workers, skip_bad=True)
    for _ in range(2):  # a second iteration starts over
        found = list(decoder.decoded())
        assert [rows for rows, _ in found] == [[0, 1], [3, 4, 5], [6]]
        assert decoder.names == ["0.png", "1.png", "2.png", "3.png", "4.png", "5.png"]
        assert [name for name, _ in decoder.skipped] == ["2-broken.png"]
    for rows, pixels in found:
        assert pixels.dtype == np.uint8
        for row, each in zip(rows, pixels, strict=True):
            assert np.array_equal(each, PLAIN(photos.read(row)))
    assert len(decoder) == 3


def test_problems_are_known_when_their_batch_is_there(photos):
    decoder = ImageDecoder(photos, PLAIN, batch_size=4, skip_bad=True)
    seen = [(len(rows), len(decoder.names), len(decoder.skipped)) for rows, _ in decoder.decoded()]
    assert seen == [(3, 3, 1), (3, 6, 1)]
    assert decoder.problem_summary().startswith("photos: 1 of 7 images cannot be read (2-broken.png: not an image")


def test_pixels_are_those_of_the_loader(photos):
    transform = Transform(6, 7, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    ours = [pixels for _, pixels in ImageDecoder(photos, transform, batch_size=2, skip_bad=True).decoded()]
    theirs = [pixels.numpy() for pixels, _ in ImageLoader(photos, transform, batch_size=2, skip_bad=True).pixels()]
    assert len(ours) == len(theirs) == 4
    assert all(map(np.array_equal, ours, theirs))


def test_an_unreadable_image_is_an_error_unless_skipped(photos):
    with pytest.raises(DataError, match=r"photos: 1 of 7 images cannot be read \(2-broken\.png"):
        list(ImageDecoder(photos, PLAIN).decoded())
    with pytest.raises(ArgumentError, match=r"batch_size=0 .*must both be at least 1"):
        ImageDecoder(photos, PLAIN, batch_size=0)


def test_pixels_are_not_scaled(tmp_path):
    write_image(tmp_path / "a.png", seed=5)
    ((rows, pixels),) = ImageDecoder(open_images(tmp_path), PLAIN).decoded()
    assert rows == [0]
    assert np.array_equal(pixels[0], noise(8, 8, 3, seed=5).transpose(2, 0, 1))
