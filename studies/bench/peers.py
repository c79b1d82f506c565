"""pytorch-ood's detectors beside ours, on the same rows and with the same settings."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from support import torchvision_operators  # noqa: F401  (before pytorch-ood, which imports torchvision)
from torch import Tensor, nn

from oodles.detectors.subspace import default_dimension
from oodles.features import Features

Input = Literal["logits", "features", "feature_maps", "inputs"]


def pytorch_ood() -> Any:
    """The package, or an error that says how to install it."""
    logging.getLogger("pytorch_ood").setLevel(logging.ERROR)
    try:
        import pytorch_ood
        import pytorch_ood.benchmark
        import pytorch_ood.detector
    except ImportError as error:
        sys.exit(f"{error}; the benchmarks need pip install '.[bench]'")
    return pytorch_ood


@dataclass(frozen=True)
class Peer:
    """A detector of pytorch-ood that does what ours called ``spec`` does.

    ``make`` takes the head as a linear layer, ``at`` says what it scores. ``slow_fit`` and ``slow_score`` name what it
    repeats its work for, where ours does not: each class, each sample or each weight. A loop in which every class sees
    only its own rows, as in the fit of Mahalanobis, repeats nothing.
    """

    spec: str
    name: str
    at: Input
    make: Callable[[Any, nn.Linear], Any]
    slow_fit: str = ""
    slow_score: str = ""

    def build(self, head: nn.Linear) -> Any:
        """The peer's detector, not fitted yet."""
        return self.make(pytorch_ood().detector, head)

    def fit(self, detector: Any, train: Features) -> None:
        """Fit it on rows, if it learns anything."""
        assert train.labels is not None
        getattr(detector, f"fit_{self.at}")(self.inputs(train), train.labels)

    def score(self, detector: Any, features: Features) -> Tensor:
        """Its scores with our sign: larger is more in-distribution."""
        with torch.no_grad():
            scores: Tensor = getattr(detector, "predict" if self.at == "inputs" else f"predict_{self.at}")(
                self.inputs(features)
            )
        return -scores

    def inputs(self, features: Features) -> Tensor:
        """The column that the peer takes."""
        if self.at == "logits":
            return features.logits
        return features.embedding[:, :, None, None] if self.at == "feature_maps" else features.embedding


def linear(features: Features) -> nn.Linear:
    """The head as a layer."""
    head = features.head
    assert head is not None
    layer = nn.Linear(head.width, head.classes)
    with torch.no_grad():
        layer.weight.copy_(head.weight)
        layer.bias.copy_(head.full_bias())
    return layer.requires_grad_(False)


def flat(head: nn.Linear) -> nn.Module:
    """The head behind feature maps of one pixel."""
    return nn.Sequential(nn.Flatten(), head)


PEERS = (
    Peer("msp", "MaxSoftmax", "logits", lambda d, head: d.MaxSoftmax(None)),
    Peer("max_logit", "MaxLogit", "logits", lambda d, head: d.MaxLogit(None)),
    Peer("energy", "EnergyBased", "logits", lambda d, head: d.EnergyBased(None)),
    Peer("entropy", "Entropy", "logits", lambda d, head: d.Entropy(None)),
    Peer("gen", "GEN", "logits", lambda d, head: d.GEN(None, gamma=0.1, M=min(100, head.out_features))),
    Peer("kl_matching", "KLMatching", "logits", lambda d, head: d.KLMatching(None)),
    Peer("temp_scale", "TemperatureScaling", "logits", lambda d, head: d.TemperatureScaling(None)),
    Peer(
        "openmax",
        "OpenMax",
        "logits",
        lambda d, head: d.OpenMax(None, tailsize=20, alpha=10),
        slow_fit="classes",
        slow_score="samples",
    ),
    Peer("react(90)", "ReAct", "feature_maps", lambda d, head: d.ReAct(None, flat(head), percentile=0.9)),
    Peer(
        "vra",
        "VRA",
        "feature_maps",
        lambda d, head: d.VRA(None, flat(head), lower_percentile=0.6, upper_percentile=0.95),
    ),
    Peer("ash_p", "ASH-P", "feature_maps", lambda d, head: d.ASH(None, flat(head), "ash-p", 0.9)),
    Peer("ash_b", "ASH-B", "feature_maps", lambda d, head: d.ASH(None, flat(head), "ash-b", 0.9)),
    Peer("ash_s", "ASH-S", "feature_maps", lambda d, head: d.ASH(None, flat(head), "ash-s", 0.9)),
    Peer("scale", "SCALE", "feature_maps", lambda d, head: d.SCALE(None, flat(head), percentile=0.85)),
    Peer("lts", "LTS", "features", lambda d, head: d.LTS(None, head, p=0.05)),
    Peer(
        "dice(0.9)",
        "DICE",
        "features",
        lambda d, head: d.DICE(None, head.weight, head.bias, p=0.9),
        slow_score="weights",
    ),
    Peer("mahalanobis", "Mahalanobis", "features", lambda d, head: d.Mahalanobis(None), slow_score="classes"),
    Peer("rmds", "RMD", "features", lambda d, head: d.RMD(None), slow_score="classes"),
    Peer("ddu(ridge=1e-06)", "GMM", "features", lambda d, head: d.GMM(None)),
    Peer(
        "vim",
        "ViM",
        "features",
        lambda d, head: d.ViM(None, d=default_dimension(head.in_features), w=head.weight, b=head.bias),
    ),
    Peer("knn(k=10, bank=1000000)", "KNN", "features", lambda d, head: d.KNN(None, k=10)),
    Peer("nnguide(k=10, bank=1000000)", "NNGuide", "features", lambda d, head: d.NNGuide(None, head, k=10)),
    Peer("she", "SHE", "features", lambda d, head: d.SHE(None, head)),
    Peer("fdbd", "fDBD", "features", lambda d, head: d.fDBD(None, head)),
    Peer("nci", "NCI", "features", lambda d, head: d.NCI(None, head, alpha=0.0001)),
    Peer("pnml", "PNML", "features", lambda d, head: d.PNML(None, head)),
    Peer(
        "gradnorm",
        "GradNorm",
        "inputs",
        lambda d, head: d.GradNorm(head, param_filter=lambda name: name == "weight"),
        slow_score="samples",
    ),
    Peer(
        "grad_uncertainty",
        "GradUncertainty",
        "inputs",
        lambda d, head: d.GradUncertainty(head, param_filter=lambda name: name == "weight"),
        slow_score="samples",
    ),
)
