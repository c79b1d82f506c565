"""Preprocessing inside an ONNX graph against Pillow's, bit for bit."""

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images

from oodles.data.loaders import normalise
from oodles.data.transforms import CIFAR, IMAGENET, Transform
from oodles.deploy.graph import IR_VERSION, OPSET
from oodles.deploy.preprocessing import preprocessing_graph


def by_graph(transform, pixels):
    session = onnxruntime.InferenceSession(preprocessing_graph(transform, OPSET, IR_VERSION).SerializeToString())
    return session.run(None, {"pixels": pixels})[0]


def by_pillow(transform, pixels):
    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(pixels.shape[3])
    images = [Image.fromarray(each[..., 0] if mode == "L" else each) if mode else each for each in pixels]
    prepared = np.stack([transform(each) for each in images])
    return normalise(transform, torch.from_numpy(prepared)).numpy()


@pytest.mark.parametrize("transform", [CIFAR, IMAGENET, Transform(500, 700, (0.0,) * 3, (1.0,) * 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_photographs_are_resized_as_by_pillow(transform, turned):
    photographs = np.stack(load_sample_images().images)
    if turned:
        photographs = np.ascontiguousarray(photographs.transpose(0, 2, 1, 3))
    assert np.array_equal(by_graph(transform, photographs), by_pillow(transform, photographs))


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.integers(1, 40),
    margin=st.integers(0, 20),
    seed=st.integers(0, 1000),
    channels=st.sampled_from([1, 3, 4, 6]),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    squash=st.booleans(),
    floor=st.booleans(),
)
def test_any_image_is_resized_as_by_pillow(width, height, size, margin, seed, channels, interpolation, squash, floor):
    numbers = tuple(np.linspace(0.2, 0.6, channels).tolist())
    transform = Transform(size, size + margin, numbers, numbers, interpolation, squash, floor)
    pixels = np.random.default_rng(seed).integers(0, 256, (2, height, width, channels), dtype=np.uint8)
    assert np.array_equal(by_graph(transform, pixels), by_pillow(transform, pixels))
