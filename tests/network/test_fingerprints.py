"""What a model is recognised by: every weight and hyperparameter, and nothing that differs between processes."""

import copy

import pytest
import torch
from support import networks
from support.networks import one_thread, seeded  # noqa: F401
from torch import nn

from oodles.network.fingerprints import model_fingerprint


def pooled(window=2, eps=1e-5, slope=0.1):
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=eps), nn.LeakyReLU(slope), nn.MaxPool2d(window, 2)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


@pytest.mark.parametrize("change", [{"window": 3}, {"eps": 1e-3}, {"slope": 0.2}], ids=str)
def test_a_hyperparameter_is_part_of_it(change):
    model, other = seeded(pooled), seeded(lambda: pooled(**change))
    other.load_state_dict(model.state_dict())
    assert model_fingerprint(model) == model_fingerprint(seeded(pooled))
    assert model_fingerprint(other) != model_fingerprint(model)
    assert model_fingerprint(other, hyperparameters=False) == model_fingerprint(model, hyperparameters=False)


class Shows(nn.Linear):
    """A user's layer with an ``extra_repr`` of its own."""

    text = ""

    def extra_repr(self):
        return self.text.format(address=f"{id(self):#x}", identity=id(self), other=object())


class Raises(nn.Linear):
    def extra_repr(self):
        raise RuntimeError("not ready")


def test_what_a_users_layer_shows_counts_except_for_addresses():
    one, other = seeded(lambda: Shows(3, 2)), seeded(lambda: Shows(3, 2))
    Shows.text = "at {address}, id {identity}, {other}"
    assert model_fingerprint(one) == model_fingerprint(other)
    before = model_fingerprint(one)
    Shows.text += ", temperature 2.5"
    assert model_fingerprint(one) != before
    assert model_fingerprint(seeded(lambda: Raises(3, 2))) == model_fingerprint(seeded(lambda: Raises(3, 2)))


def test_wrappers_modes_and_copies_are_the_same_model():
    model = seeded(networks.Net)
    model.scales = nn.ParameterList([torch.ones(2)])
    before = model_fingerprint(model)
    others = [
        nn.DataParallel(model),
        torch.compile(model, backend="eager"),
        copy.deepcopy(model).train(),
        copy.deepcopy(model).eval(),
    ]
    assert {model_fingerprint(other) for other in others} == {before}
    assert model_fingerprint(seeded(networks.Softmax)) != before, "same weights, another class"
    with torch.no_grad():
        others[-1].body.bn1.running_mean[0] += 1e-6
    assert model_fingerprint(others[-1]) != before
    for dtype in (torch.float16, torch.bfloat16):
        assert model_fingerprint(copy.deepcopy(model).to(dtype)) == model_fingerprint(model, dtype=dtype) != before
