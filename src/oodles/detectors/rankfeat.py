"""RankFeat: the energy without the first singular component of the last feature map."""

from torch import Tensor
from typing_extensions import override

from oodles.columns import LAYER
from oodles.detectors.base import Statistics
from oodles.detectors.network_detector import NetworkDetector
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.features import Features, Head
from oodles.functional import energy

TOLERANCE = 2e-2  # of the largest activation; half precision stays below it


class RankFeat(NetworkDetector):
    """Energy of the logits without the first singular component of the last map (Song, Sebe & Wang, NeurIPS 2022).

    With ``X`` the map of ``layer`` as a matrix of channels by positions, ``X' = X - s1 u1 v1'``: the energy of
    ``W mean(X') + b``. Nothing is learned, but the fit verifies that the mean of ``X`` over positions is the
    embedding, so that only pooling and the last layer follow ``layer``. If a ReLU that is not a module comes between,
    add it to the name: ``"bn1:relu"`` for a DenseNet. The default is the name in torchvision's ResNets. The paper
    also averages the logits with those after the block before; this is its variant for the last block alone.

    >>> RankFeat(layer="layer4").layers  # reduced while the network runs, since maps are large
    ('layer4', 'layer4:rankfeat')
    """

    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, layer: str = "layer4") -> None:
        super().__init__()
        if not isinstance(layer, str) or not layer:
            raise ArgumentError(f"layer={layer!r} must be the name of a module, e.g. 'layer4'")
        self.layer = layer
        self.layers = (layer, reduced(layer, "rankfeat"))
        self.learns_from = (*(LAYER + name for name in self.layers), "embedding", "head")
        self.scores_from = (LAYER + self.layers[1],)

    @override
    def layer_widths(self) -> dict[str, int]:
        return {self.scores_from[0]: self.weight_.shape[1]}

    @override
    def observe(self, batch: Features, statistics: Statistics) -> None:
        pooled, embedding = batch.column(LAYER + self.layer), batch.embedding
        if pooled.shape[1] != embedding.shape[1]:
            raise self._refusal(f"it has {pooled.shape[1]} channels, the embedding {embedding.shape[1]}")
        gap = float((pooled - embedding).abs().max()) / max(1e-30, float(embedding.abs().max()))
        if gap > TOLERANCE:
            raise self._refusal(f"relative error {gap:.2g}")

    @override
    def learn(self, statistics: Statistics, head: Head) -> None:
        self.weight_, self.bias_ = head.weight.clone(), head.full_bias().clone()

    @override
    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        (rest,) = others
        if rest.shape[1] != self.weight_.shape[1]:
            raise ShapeError(f"{self} was fitted on width {self.weight_.shape[1]}, got {rest.shape[1]}; another model?")
        return energy(rest @ self.weight_.T + self.bias_)

    def _refusal(self, fact: str) -> DataError:
        return DataError(
            f"{self}: the mean of this layer's map is not the embedding ({fact}); name the module whose map is "
            "averaged into it, with ':relu' if a ReLU that is not a module follows, e.g. 'bn1:relu' for a DenseNet"
        )


def reduced(layer: str, reduction: str) -> str:
    """The name of what is kept of a layer's map, which may already be followed by ``:relu``.

    >>> reduced("layer4", "rankfeat"), reduced("bn1:relu", "gram(5)")
    ('layer4:rankfeat', 'bn1:relu+gram(5)')
    """
    return f"{layer}+{reduction}" if ":" in layer else f"{layer}:{reduction}"
