"""Every detector on one small network, to be exported: the list is that of the tests and of the page."""

from typing import NamedTuple

import torch
from support.networks import Net, batched, seeded, spread
from torch import nn

import oodles as ood
from oodles.detectors import parse
from oodles.detectors.network_detector import layers_of, steps_of
from oodles.guard import Guard
from oodles.selection.tuning import tune

TRAIN, HELD_OUT = batched(160, 40, seed=1), batched(120, 40, seed=2)


class Case(NamedTuple):
    """A detector as text, and whether it scores after a step along a gradient of the network."""

    spec: str
    steps: bool = False


# what looks into the network or takes settings, besides the detectors of the list
OTHERS = [
    Case("rankfeat('body')"),
    Case("gram(['body.conv1', 'body.conv2'])"),
    Case("mahalanobis(layers=['body.bn1'])"),
    Case("rank_ensemble(['energy', 'knn'])"),
    Case("support"),
    Case("supported('knn')"),
    Case("odin(epsilon=0.01)", steps=True),
    Case("iodin(epsilon=0.01)", steps=True),
    Case("mahalanobis(epsilon=0.01)", steps=True),
    Case("adascale", steps=True),
]
CASES = [*(Case(detector.spec) for detector in ood.detectors.detector_list()), *OTHERS]


def make_network() -> nn.Module:
    return spread(seeded(Net))


def guard_of(network: nn.Module, spec: str) -> Guard:
    """A guard with this detector, whatever it needs of the network."""
    detector = parse(spec)
    layers = layers_of([detector])
    detector.fit(ood.extract(network, TRAIN, layers=layers))
    tune([detector], network, HELD_OUT)
    held_out = ood.extract(network, HELD_OUT, layers=layers, steps=steps_of([detector]))
    return Guard(network, detector, ood.calibrate(detector.score(held_out), 0.9))


def inputs() -> list[torch.Tensor]:
    """ID inputs to compare torch and onnxruntime on."""
    return [images for images, _ in HELD_OUT]
