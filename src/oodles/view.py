"""``View``: one look of a network at images, as columns: embedding, logits and the inner layers asked for."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from oodles.errors import ArgumentError
from oodles.features import LAYER
from oodles.locate import Located, locate
from oodles.store import Columns
from oodles.tap import Tap, logits_of

CPU_ROWS = 32
"""Rows a convolutional network sees at a time on a CPU: its activations then stay in the caches (see benchmarks/)."""


class View:
    """A network, its last layer found at the first images, and the inner layers to keep.

    ``layer`` names the last layer where it is not found by itself; False leaves it alone and keeps logits.
    The network must be at rest.
    """

    def __init__(
        self, network: nn.Module, layer: str | Literal[False] | None = None, layers: Sequence[str] = ()
    ) -> None:
        unknown = [name for name in layers if name not in dict(network.named_modules())]
        if unknown:
            raise ArgumentError(f"layers= names {unknown[0]!r}, which is no module of {type(network).__name__}")
        self.network = network
        self.layer = layer
        self.layers = tuple(layers)
        self.convolutional = any(isinstance(module, nn.Conv2d) for module in network.modules())
        self.located: Located | None = None
        self._tap: Tap | None = None

    def pieces(self, images: Tensor, rows: int | None = None) -> tuple[Tensor, ...]:
        """The images as many at a time as the network should see."""
        usual = CPU_ROWS if images.device.type == "cpu" and self.convolutional else len(images)
        return torch.split(images, rows or usual)

    def find(self, images: Tensor) -> Tap:
        """A tap on the last layer and the inner ones; the search is made once, on the first images."""
        if self._tap is None:
            if self.layer is not False:
                with torch.inference_mode(False), torch.no_grad():  # the head's numbers must bear a backward pass
                    self.located = locate(self.network, images, self.layer)
            self._tap = Tap(self.network, self.located.sites if self.located else (), self.layers)
        return self._tap

    def look(self, images: Tensor) -> Columns:
        """One forward pass."""
        if images.ndim == 4 and self.convolutional and images.device.type == "cpu":
            images = images.contiguous(memory_format=torch.channels_last)
        raw, entering, pooled = self.find(images)(images)
        columns = {"logits": logits_of(raw)}
        if self.located is not None:
            embedding = self.located.embedding(entering)
            columns = {"embedding": embedding, "logits": self.located.logits(embedding, columns["logits"])}
        return columns | {LAYER + name: activation for name, activation in pooled.items()}
