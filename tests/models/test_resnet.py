"""ResNet-50 by torchvision, which need not be installed."""

import sys
from types import ModuleType

import pytest
from torch import nn

from oodles.bench import suite
from oodles.errors import ArgumentError, MissingPackageError
from oodles.models import build_model, resnet50


def test_resnet50_without_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    remedy = r"resnet50 needs torchvision, which is not installed; install it with: pip install 'oodles\[torchvision\]'"
    with pytest.raises(MissingPackageError, match=f"^{remedy}$"):
        resnet50()
    with pytest.raises(ArgumentError, match=remedy) as caught:
        build_model(suite("imagenet").model)
    assert "\n" not in str(caught.value)


def test_resnet50_is_built_by_torchvision_without_weights(monkeypatch):
    calls = []

    def build(**options):
        calls.append(options)
        return nn.Linear(2048, options["num_classes"])

    fake = ModuleType("torchvision.models")
    fake.resnet50 = build
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", fake)
    assert build_model(suite("imagenet").model).out_features == suite("imagenet").classes
    assert resnet50(7).out_features == 7
    assert calls == [{"weights": None, "num_classes": 1000}, {"weights": None, "num_classes": 7}]
