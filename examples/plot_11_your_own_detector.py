"""
A detector of your own
======================

A detector declares what it learns from, and implements four short hooks. It then does what all detectors do: it fits in
parts and in several processes, saves, exports, has a name in text, and is compared with the others.
"""

import matplotlib.pyplot as plt
from torch import Tensor

import oodles as ood
from oodles.bench.demo import load_pack
from oodles.detectors.statistics import ClassMeans
from oodles.plots import detector_dots
from oodles.testing import check_detector

# %%
# This one divides the norm of an embedding by its mean over training rows of the same predicted class: the network
# responds weakly to what it does not know. ``begin`` returns empty statistics, ``observe`` adds a batch to them,
# ``learn`` computes what is kept (names that end in ``_``), and ``forward`` gives scores.


@ood.register("relative_norm", summary="norm of the embedding, relative to the predicted class")
class RelativeNorm(ood.Detector):
    """L1 norm of the embedding, divided by its mean over training rows of the predicted class."""

    learns_from = ("embedding", "logits")
    means_: Tensor

    def begin(self) -> dict[str, ClassMeans]:
        return {"means": ClassMeans()}

    def observe(self, batch: ood.Features, statistics: dict[str, ClassMeans]) -> None:
        norm = batch.embedding.norm(p=1, dim=1, keepdim=True)
        statistics["means"].add(norm, batch.logits.argmax(dim=1), batch.classes)

    def learn(self, statistics: dict[str, ClassMeans], head: ood.Head) -> None:
        self.means_ = statistics["means"].values()[:, 0].float()

    def forward(self, embedding: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
        return embedding.norm(p=1, dim=1) / self.means_[logits.argmax(dim=1)].clamp(min=1e-12)


# %%
# The conformance suite tries it: does a score depend on other rows of the batch, does a fit in parts differ, does a
# saved detector score the same? An error says what is wrong; a warning says that a class of a script cannot be saved.

check_detector(RelativeNorm())
train, test, ood_sets, _ = load_pack()
names = ["msp", "energy", "knn", "relative_norm", "default"]
rows = ood.benchmark(names, train=train, test=test, ood=ood_sets)
print(rows)

# %%

by_set = {name: 100 * rows.to_dataframe().query("ood_set == @name").fpr95.to_numpy() for name in ood_sets}
plt.figure(detector_dots(names, by_set, sum(by_set.values()) / len(by_set)))
plt.show()
