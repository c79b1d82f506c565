"""DeConf-C, the head of Generalized ODIN: cosines to class directions, divided by a learned confidence."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.errors import ArgumentError

NORM_FLOOR = 1e-4
"""Added to both norms under a cosine, as the method's authors do."""


class Cosine(nn.Module):
    """``h_i(x)``: the cosine between an embedding and each class's direction; its weights take no weight decay."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, width))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")

    def forward(self, embedding: Tensor) -> Tensor:
        """Cosines ``(n, C)``."""
        return F.linear(_unit(embedding), _unit(self.weight))


class DeConf(nn.Module):
    """Logits ``f_i(x) = h_i(x) / g(x)`` with ``g = sigmoid(batchnorm(linear(embedding)))``."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.cosine = Cosine(width, num_classes)
        self.confidence = nn.Sequential(nn.Linear(width, 1), nn.BatchNorm1d(1), nn.Sigmoid())

    def forward(self, embedding: Tensor) -> Tensor:
        """Logits ``(n, C)``."""
        cosines: Tensor = self.cosine(embedding)
        logits: Tensor = cosines / self.confidence(embedding)
        return logits


def with_head(model: nn.Module, head: str) -> nn.Module:
    """The network as it is (``linear``), or with a fresh DeConf-C head where ``fc`` was (``deconf``)."""
    if head == "linear":
        return model
    if head != "deconf":
        raise ArgumentError(f"head={head!r} is neither linear nor deconf")
    last = getattr(model, "fc", None)
    if not isinstance(last, nn.Linear):
        raise ArgumentError(f"{type(model).__name__} has no last linear layer called fc, which DeConf would replace")
    model.fc = DeConf(last.in_features, last.out_features)
    return model


def cosine_layer(model: nn.Module) -> str | None:
    """The name of the module that gives the cosines; None where the model has no such head."""
    return next((name for name, module in model.named_modules() if isinstance(module, Cosine)), None)


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / (length + NORM_FLOOR)
