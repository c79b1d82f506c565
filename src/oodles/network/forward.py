"""``ForwardPass``: one pass of a network over images gives columns: embedding, logits and inner layers."""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.columns import LAYER, Columns
from oodles.errors import ArgumentError
from oodles.features import Head
from oodles.network.head import LocatedHead, locate_head
from oodles.network.taps import Tap, has_convolutions, logits_of

HeadName = str | Literal[False] | None
"""Name of the last linear layer; None to search for it, False to keep only the logits."""

CPU_ROWS = 32  # batch size of convolutional networks on a CPU, small enough for their activations to stay in the caches


def two_class_head(head: Head) -> Head:
    """A head with one logit z as the head with the logits 0 and z, whose softmax is the sigmoid of z."""
    return Head(F.pad(head.weight, (0, 0, 1, 0)), F.pad(head.full_bias(), (1, 0)))


class Pass(NamedTuple):
    """The result of a pass: the logits exactly as the model returned them, and the columns."""

    output: Tensor
    columns: Columns


class ForwardPass:
    """A network in eval mode, its last layer, which is located on the first batch, and the inner layers to keep."""

    def __init__(self, network: nn.Module, head: HeadName = None, layers: Sequence[str] = ()) -> None:
        unknown = [name for name in layers if name not in dict(network.named_modules())]
        if unknown:
            raise ArgumentError(f"layers= names {unknown[0]!r}, which is not a module of {type(network).__name__}")
        self.network = network
        self.head = head
        self.layers = tuple(layers)
        self.convolutional = has_convolutions(network)
        self.located: LocatedHead | None = None
        self._tap: Tap | None = None
        self._warned = False

    def pieces(self, images: Tensor, batch_size: int | None = None) -> tuple[Tensor, ...]:
        """The images in batches of the size and memory layout that are fastest for the network."""
        on_cpu = images.device.type == "cpu" and self.convolutional
        pieces = torch.split(images, batch_size or (CPU_ROWS if on_cpu else len(images)))
        if images.ndim == 4 and on_cpu:
            pieces = tuple(piece.contiguous(memory_format=torch.channels_last) for piece in pieces)
        return pieces

    def find_head(self, images: Tensor) -> Tap:
        """A tap on the last layer and the inner ones; the head is located once, on the first images."""
        if self._tap is None:
            if self.head is not False:
                # outside inference mode, because the head's weights take part in backward passes
                with torch.inference_mode(False), torch.no_grad():
                    self.located = locate_head(self.network, images, self.head)
            self._tap = Tap(self.network, self.located.points if self.located else (), self.layers)
        return self._tap

    def feature_head(self) -> Head | None:
        """The head that gives the column ``logits`` from the column ``embedding``; None if only logits are kept."""
        head = None if self.located is None else self.located.head
        return two_class_head(head) if head is not None and head.classes == 1 else head

    def run(self, images: Tensor) -> Pass:
        """One forward pass."""
        raw, entering, pooled = self.find_head(images)(images)
        output = logits_of(raw)
        columns = {"logits": output}
        if self.located is not None:
            embedding = self.located.embedding(entering)
            columns = {"embedding": embedding, "logits": self.located.logits(embedding, output)}
        if output.shape[1] == 1:
            self._warn_single_logit()
            columns["logits"] = F.pad(columns["logits"], (1, 0))
        return Pass(output, columns | {LAYER + name: activation for name, activation in pooled.items()})

    def _warn_single_logit(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self.network).__name__} has a single logit z, treated as two classes with logits 0 and z",
                stacklevel=2,
            )
