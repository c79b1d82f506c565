"""ResNet-50 by torchvision, which need not be installed."""

import sys
from types import ModuleType

import pytest
from torch import nn

from oodles.bench import suite
from oodles.errors import ArgumentError
from oodles.models import build_model


def test_resnet50_without_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    remedy = r"needs torchvision, which is not installed; install it with: pip install 'oodles\[torchvision\]'"
    with pytest.raises(ArgumentError, match=remedy) as caught:
        build_model(suite("imagenet").model)
    assert "\n" not in str(caught.value)


def test_resnet50_is_built_by_torchvision_without_weights(monkeypatch):
    fake = ModuleType("torchvision.models")
    fake.resnet50 = lambda *, weights=None, num_classes=1000: nn.Linear(2048, num_classes, bias=weights is None)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", fake)
    built = build_model(suite("imagenet").model)
    assert built.out_features == suite("imagenet").classes
    assert built.bias is not None
