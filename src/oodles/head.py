"""What is known of the classifier that features came from: its last layer, its classes."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.columns import PRECISIONS, as_tensor
from oodles.errors import DataError, ShapeError


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: ``weight (C, m)`` and ``bias (C,)`` or None; calling it gives logits.

    >>> Head(torch.eye(2))(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        device = as_tensor("weight", self.weight).device
        for name, part in self.tensors().items():
            object.__setattr__(self, name, as_tensor(name, part).to(device))  # from NumPy too
        if self.weight.ndim != 2:
            shape = tuple(self.weight.shape)
            raise ShapeError(f"a head's weight has the shape {shape}; give a matrix (classes, width)")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            classes, shape = self.classes, tuple(self.bias.shape)
            raise ShapeError(f"{classes} classes need a bias ({classes},), got {shape}; are both of the same layer?")
        for name, tensor in self.tensors().items():
            if tensor.dtype != self.weight.dtype:
                raise ShapeError(
                    f"a head's {name} is of type {tensor.dtype}, its weight of {self.weight.dtype}; convert one"
                )
            if tensor.dtype not in PRECISIONS:
                raise ShapeError(f"a head's {name} is of type {tensor.dtype}; convert it to floating point of 16+ bits")
            if not torch.isfinite(tensor).all():
                raise DataError(f"the head's {name} contains NaN or infinite values; is the checkpoint intact?")

    def __call__(self, embedding: Tensor) -> Tensor:
        """The logits ``(n, C)`` of embeddings ``(n, m)``."""
        return F.linear(embedding.to(self.weight.dtype), self.weight, self.bias)

    def as_model(self) -> nn.Linear:
        """Return the last layer as a model of its own, whose inputs are embeddings.

        With it, embeddings from a database can be guarded, exported and served like images.

        >>> from oodles import Guard
        >>> embeddings = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        >>> Guard.fit(Head(torch.eye(3, 8)).as_model(), [embeddings], detector="support")(9 * torch.ones(1, 8)).is_id
        tensor([False])
        """
        layer = nn.Linear(self.width, self.classes, bias=self.bias is not None)
        layer.load_state_dict(self.tensors())
        return layer.eval().requires_grad_(False)

    @property
    def classes(self) -> int:
        """C, the number of logits."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """m, the length of an embedding."""
        return self.weight.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """``(C, m)``."""
        return self.classes, self.width

    def full_bias(self) -> Tensor:
        """The bias, or zeros if there is none."""
        return torch.zeros_like(self.weight[:, 0]) if self.bias is None else self.bias

    @cached_property
    def probe(self) -> Tensor:
        """The logits ``(C,)`` of a fixed pseudo-random embedding, by which heads are told apart in any precision."""
        embedding = torch.rand(self.width, generator=torch.Generator().manual_seed(0))
        return self.weight.detach().cpu().float() @ embedding + self.full_bias().detach().cpu().float()

    def tensors(self) -> dict[str, Tensor]:
        """The weight and, if there is one, the bias, by name."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Head":
        """The same head on another device or with another floating-point type."""
        parts = {name: tensor.to(device=device, dtype=dtype) for name, tensor in self.tensors().items()}
        return self if parts["weight"] is self.weight and parts.get("bias") is self.bias else Head(**parts)

    def same_as(self, other: "Head") -> bool:
        """Whether both have exactly the same numbers."""
        if (self.bias is None) != (other.bias is None):
            return False
        theirs = other.tensors()
        return all(torch.equal(mine.cpu(), theirs[name].cpu()) for name, mine in self.tensors().items())


@dataclass(frozen=True, eq=False)
class Classifier:
    """What is known of the model that features came from."""

    head: Head | None = None
    class_names: tuple[str, ...] = ()
    multilabel: bool = False
