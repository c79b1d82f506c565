"""Transforms of torchvision, timm and transformers against ours, pixel by pixel."""

import numpy as np
import pytest
import support.torchvision_operators  # noqa: F401
import torch
import transformers
from PIL import Image
from sklearn.datasets import load_sample_images
from support.images import noise
from timm.data import create_transform
from torch import nn
from torchvision import transforms as v1
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

from oodles.data.conversion import as_transform, preprocessing_record
from oodles.data.loaders import normalise
from oodles.data.transforms import Transform
from oodles.errors import ArgumentError, DataError
from oodles.guard import Guard
from oodles.network.extraction import extract

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
BICUBIC = InterpolationMode.BICUBIC
TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
PHOTO = Image.fromarray(load_sample_images().images[0])
TALL = Image.fromarray(np.ascontiguousarray(load_sample_images().images[1].transpose(1, 0, 2)))


def prepared(transform, image):
    return normalise(transform, torch.from_numpy(transform(image)[None]))[0]


def levels(ours, theirs, transform):
    """By how many grey levels of 256 two images differ at most."""
    return float(((ours - theirs).abs() * torch.tensor(transform.std).view(-1, 1, 1)).max()) * 255


@pytest.mark.parametrize(
    "theirs",
    [
        v1.Compose([v1.Resize(48), v1.CenterCrop(40), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        v1.Compose([v1.Resize([33], BICUBIC), v1.CenterCrop((32, 32)), v1.ToTensor()]),
        v1.Compose([v1.Grayscale(), v1.Resize(30), v1.CenterCrop(29), v1.ToTensor(), v1.Normalize(0.4, 0.2)]),
        v2.Compose([v2.RGB(), v2.Resize(64), v2.CenterCrop(50), v2.ToImage(), TO_FLOAT, v2.Normalize(MEAN, STD)]),
        v1.Compose([v1.Resize(32), v1.CenterCrop(32), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
        ResNet18_Weights.IMAGENET1K_V1.transforms(),
        create_transform((3, 56, 56), is_training=False, interpolation="bicubic", mean=MEAN, std=STD, crop_pct=0.9),
    ],
)
@pytest.mark.parametrize("image", [PHOTO, TALL], ids=["wide", "tall"])
def test_pixels_are_the_same(theirs, image):
    transform = as_transform(theirs)
    torch.testing.assert_close(prepared(transform, image), theirs(image), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("theirs", "most"),
    [
        # Pillow resizes rows first where that is faster; torch rounds weights to fewer bits
        (v1.Compose([v1.Resize((48, 48)), v1.ToTensor(), v1.Normalize(MEAN, STD)]), 1),
        (v2.Compose([v2.ToImage(), v2.Resize(48), v2.CenterCrop(40), TO_FLOAT, v2.Normalize(MEAN, STD)]), 1),
        (v2.Compose([v2.PILToTensor(), v2.Resize((48, 48), BICUBIC), TO_FLOAT]), 2),
    ],
)
@pytest.mark.parametrize("image", [PHOTO, TALL, Image.fromarray(noise(70, 41, 3))], ids=["wide", "tall", "noise"])
def test_pixels_differ_by_rounding(theirs, most, image):
    transform = as_transform(theirs)
    assert levels(prepared(transform, image), theirs(image), transform) <= most + 1e-3


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViTImageProcessor", {"size": {"height": 48, "width": 48}}),
        ("DeiTImageProcessor", {"size": {"height": 48, "width": 48}, "crop_size": {"height": 41, "width": 41}}),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 48}, "crop_size": {"height": 45, "width": 45}}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 48}}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    ],
)
@pytest.mark.parametrize("image", [PHOTO, TALL], ids=["wide", "tall"])
def test_image_processors(name, fields, image):
    processor = getattr(transformers, name)(**fields)
    transform = as_transform(processor)
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    assert levels(prepared(transform, image), theirs, transform) <= 2 + 1e-3


def test_a_configuration_of_timm_is_its_transform():
    about = {"mean": tuple(MEAN), "std": tuple(STD), "crop_pct": 0.875, "interpolation": "bicubic"}
    for mode in ("center", "squash"):
        created = create_transform((3, 56, 56), is_training=False, crop_mode=mode, **about)
        ours, theirs = as_transform({"input_size": (3, 56, 56), "crop_mode": mode, **about}), as_transform(created)
        assert ours.mean == pytest.approx(theirs.mean)
        assert (
            (ours.size, ours.resize, ours.squash)
            == (theirs.size, theirs.resize, theirs.squash)
            == (56, 64, mode != "center")
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda image: image, "function"),
        (v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]), "without Resize"),
        (v1.Compose([v1.Resize(8), v1.ToTensor()]), "CenterCrop"),
        (v1.Compose([v1.Resize((8, 9)), v1.ToTensor()]), "square"),
        (v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()]), "RandomResizedCrop"),
        (v1.Compose([v1.ToTensor(), v1.Resize((8, 8))]), "in this order"),
        (v1.Compose([v1.Resize((8, 8)), lambda image: image, v1.ToTensor()]), "in this order"),
        (v1.Compose([v1.Resize((8, 8), InterpolationMode.NEAREST), v1.ToTensor()]), "nearest"),
        (v1.Compose([v1.Grayscale(3), v1.Resize((8, 8)), v1.ToTensor()]), "Grayscale"),
        (v1.Compose([v1.Resize(8), v1.CenterCrop(9), v1.ToTensor()]), "size=9"),
        (v2.Compose([v2.ToImage(), v2.Resize((8, 8), antialias=False), TO_FLOAT]), "antialias=False"),
        (v2.Compose([v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32)]), "scale=False"),
        (transformers.ViTImageProcessor(do_rescale=False), "scale by 1/255"),
        (transformers.CLIPImageProcessor(do_center_crop=False), "does not crop"),
        ({"size": 8, "mean": MEAN, "std": STD}, "resize"),
        ({"size": 8, "resize": 8, "mean": MEAN, "std": STD, "crop": 1}, "crop"),
        ({"size": "8", "resize": 8, "mean": MEAN, "std": STD}, "int"),
        ({"input_size": (3, 8, 8), "mean": MEAN, "std": STD, "crop_pct": 1, "crop_mode": "border"}, "border"),
    ],
)
def test_what_cannot_be_converted_is_refused_at_fit(given, words):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 3))
    for call in (Guard.fit, extract):
        with pytest.raises(ArgumentError, match=words):
            call(model, [torch.zeros(4, 3, 8, 8)], preprocessing=given)


def test_images_of_another_shape_than_the_preprocessing_are_refused_at_fit():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(DataError, match=r"gives images \(n, 1, 8, 8\), but the model was given \(4, 3, 8, 8\)"):
        Guard.fit(model, [torch.rand(4, 3, 8, 8)], preprocessing=Transform(8, 8, (0.5,), (0.2,)))


def test_usual_settings_are_not_recorded():
    assert preprocessing_record({"size": 8, "resize": 9, "mean": [0], "std": [1]}).keys() == {
        "size",
        "resize",
        "mean",
        "std",
    }
