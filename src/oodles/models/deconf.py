"""DeConf-C, the head of Generalized ODIN: cosines with class directions divided by a learned confidence."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.errors import ArgumentError

NORM_FLOOR = 1e-4  # added to both norms of a cosine, as in the authors' code


class Cosine(nn.Module):
    """``h_i(x)``: cosines between an embedding and the class directions; its weight is exempt from weight decay."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, width))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")

    def forward(self, embedding: Tensor) -> Tensor:
        """Cosines ``(n, C)``."""
        return F.linear(_unit(embedding), _unit(self.weight))


class DeConf(nn.Module):
    """Logits ``f_i(x) = h_i(x) / g(x)`` with ``g = sigmoid(batchnorm(linear(embedding)))``.

    >>> DeConf(width=4, num_classes=3).eval()(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.cosine = Cosine(width, num_classes)
        self.confidence = nn.Sequential(nn.Linear(width, 1), nn.BatchNorm1d(1), nn.Sigmoid())

    def forward(self, embedding: Tensor) -> Tensor:
        """Logits ``(n, C)``."""
        cosines: Tensor = self.cosine(embedding)
        logits: Tensor = cosines / self.confidence(embedding)
        return logits


def with_head(model: nn.Module, head_type: str) -> nn.Module:
    """The model unchanged (``linear``), or with its ``fc`` replaced by a new DeConf-C head (``deconf``)."""
    if head_type == "linear":
        return model
    if head_type != "deconf":
        raise ArgumentError(f"head_type={head_type!r} must be linear or deconf")
    last = getattr(model, "fc", None)
    if not isinstance(last, nn.Linear):
        raise ArgumentError(f"{type(model).__name__} has no last linear layer called fc for DeConf to replace")
    model.fc = DeConf(last.in_features, last.out_features)
    return model


def cosine_layer(model: nn.Module) -> str | None:
    """The name of the module that computes the cosines; None if the model has no such head."""
    return next((name for name, module in model.named_modules() if isinstance(module, Cosine)), None)


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / (length + NORM_FLOOR)
