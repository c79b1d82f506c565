"""Transforms: resizing, cropping and normalising."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.images import noise

from oodles.data.loaders import normalise
from oodles.data.transforms import CIFAR, IMAGENET, Transform
from oodles.errors import ArgumentError, DataError


@pytest.mark.parametrize("size", [(8, 8), (8, 20), (20, 8), (1, 1), (9, 100), (101, 33)])
@pytest.mark.parametrize(("crop", "resize"), [(8, 8), (5, 8), (7, 12)])
def test_every_image_gets_the_networks_size(size, crop, resize):
    transform = Transform(crop, resize, (0.0,) * 3, (1.0,) * 3)
    assert transform(Image.fromarray(noise(size[1], size[0], 3))).shape == (3, crop, crop)


def test_an_image_of_the_right_size_is_unchanged():
    image = noise(32, 32, 3)
    assert np.array_equal(CIFAR(Image.fromarray(image)), image.transpose(2, 0, 1))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
@pytest.mark.parametrize("given", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_images_get_the_channels_of_the_mean(given, mode, channels):
    image = Image.fromarray(noise(8, 8, 3)).convert(given)
    expected = np.asarray(image.convert(mode)).reshape(8, 8, channels).transpose(2, 0, 1)
    assert np.array_equal(Transform(8, 8, (0.0,) * channels, (1.0,) * channels)(image), expected)


def test_the_crop_is_the_centre():
    image = noise(12, 20, 3)
    cropped = Transform(6, 12, (0.0,) * 3, (1.0,) * 3)(Image.fromarray(image))
    assert np.array_equal(cropped, image[3:9, 7:13].transpose(2, 0, 1))


def test_the_shorter_side_is_resized_and_the_aspect_ratio_kept():
    # left half black, right half white: after 40x20 -> 20x10 and the centre crop the edge is in the middle
    image = np.zeros((20, 40, 3), dtype=np.uint8)
    image[:, 20:] = 255
    cropped = Transform(10, 10, (0.0,) * 3, (1.0,) * 3)(Image.fromarray(image))
    assert (cropped[:, :, :4] == 0).all()
    assert (cropped[:, :, 6:] == 255).all()


def test_images_are_normalised_per_channel():
    values = np.stack([np.full((3, 2, 2), level, dtype=np.uint8) for level in (0, 255, 51)])
    normal = normalise(IMAGENET, torch.from_numpy(values))
    for channel, (mean, std) in enumerate(zip(IMAGENET.mean, IMAGENET.std, strict=True)):
        for row, level in enumerate((0.0, 1.0, 0.2)):
            torch.testing.assert_close(normal[row, channel], torch.full((2, 2), (level - mean) / std))


def test_invalid_transforms_are_refused():
    with pytest.raises(ArgumentError, match="size=9 must lie between 1 and resize=8"):
        Transform(9, 8, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ArgumentError, match=r"mean=\(0.5,\) and std=\(1.0, 1.0\) must have as many values"):
        Transform(8, 8, (0.5,), (1.0, 1.0))
    with pytest.raises(ArgumentError, match="interpolation='nearest'"):
        Transform(8, 8, (0.5,), (1.0,), "nearest")
    with pytest.raises(DataError, match="5 channels"):
        Transform(8, 8, (0.5,) * 5, (1.0,) * 5)(Image.new("RGB", (8, 8)))
    with pytest.raises(ArgumentError, match="size=0"):
        Transform(0, 8, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ArgumentError, match="must be positive"):
        Transform(8, 8, (0.0,) * 3, (1.0, 0.0, 1.0))
