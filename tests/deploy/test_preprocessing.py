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
    prepared = np.stack([transform(Image.fromarray(each)) for each in pixels])
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
)
def test_any_size_is_resized_as_by_pillow(width, height, size, margin, seed):
    transform = Transform(size, size + margin, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    pixels = np.random.default_rng(seed).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
    assert np.array_equal(by_graph(transform, pixels), by_pillow(transform, pixels))
