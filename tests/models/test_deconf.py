"""The DeConf-C head: cosines divided by a confidence, and its place in a network."""

import numpy as np
import pytest
import torch
from reference import gradient as slow
from support import networks
from support.networks import CLASSES, WIDTH, one_thread, seeded  # noqa: F401
from support.smooth import deconf, small
from torch import nn

from oodles.detectors import GODIN
from oodles.errors import ArgumentError
from oodles.models.deconf import Cosine, DeConf, cosine_layer, with_head


def test_deconf_divides_cosines_by_confidence():
    model, images = deconf(), small(6)
    head, hidden = model.fc, model.hidden(images).detach()
    with torch.no_grad():
        cosines, logits = head.cosine(hidden), head(hidden)
    linear, norm, _ = head.confidence
    for row in range(6):
        h = hidden[row].numpy()
        raw = float(linear.weight[0].detach().numpy() @ h + linear.bias.item())
        normed = (raw - norm.running_mean.item()) / (norm.running_var.item() + norm.eps) ** 0.5
        confidence = 1 / (1 + np.exp(-(norm.weight.item() * normed + norm.bias.item())))
        for label in range(CLASSES):
            want = slow.cosine(h, head.cosine.weight[label].detach().numpy())
            np.testing.assert_allclose(cosines[row, label], want, rtol=1e-9)
            np.testing.assert_allclose(logits[row, label], want / confidence, rtol=1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-20, 1.0, 1e20])
def test_a_cosine_is_at_most_one_whatever_the_lengths(size):
    cosine = seeded(lambda: Cosine(WIDTH, CLASSES))
    rows = size * torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values = torch.cat([cosine(rows), cosine(size * cosine.weight)])
    assert bool((values.abs() <= 1).all())
    if size == 1.0:
        np.testing.assert_allclose(cosine(cosine.weight).detach().diagonal(), 1, atol=1e-3)


def test_the_head_takes_the_place_of_fc():
    model = with_head(networks.Net(), "deconf")
    assert isinstance(model.fc, DeConf)
    assert model.fc(torch.rand(4, WIDTH)).shape == (4, CLASSES)
    assert cosine_layer(model) == GODIN().layer == "fc.cosine"
    assert cosine_layer(nn.Sequential(nn.Flatten(), DeConf(3, 2))) == "1.cosine"
    untouched = networks.Net()
    before = untouched.fc
    assert with_head(untouched, "linear") is untouched
    assert untouched.fc is before
    assert cosine_layer(untouched) is None


def test_a_head_that_cannot_be_replaced_is_refused():
    with pytest.raises(ArgumentError, match="head_type='cosine' must be linear or deconf"):
        with_head(networks.Net(), "cosine")
    for model in (networks.DenseNetLike(), networks.ConvAfterPool(), with_head(networks.Net(), "deconf")):
        with pytest.raises(ArgumentError, match=f"{type(model).__name__} has no last linear layer called fc"):
            with_head(model, "deconf")
