"""
Quickstart: how far apart are ID and OOD scores?
================================================

``oodles`` comes with embeddings of real images: CIFAR-10, which the network was trained on (in-distribution, ID), and
four sets of other images (out-of-distribution, OOD). So detectors can be compared before you have a model of your own.
"""

import matplotlib.pyplot as plt

import oodles as ood
from oodles.bench.demo import load_pack
from oodles.plots import score_histograms

train, test, ood_sets, _ = load_pack()
train

# %%
# :class:`~oodles.Features` are what a network computed for each image: an embedding, logits, and the last layer that
# turns one into the other. ``ood.extract(model, loader)`` makes them for your own model. :func:`oodles.benchmark`
# fits each detector on the training features and compares its scores of CIFAR-10 test images with those of each other
# set. FPR95 is the percentage of OOD images that are accepted when 95 % of ID images are.

names = ["msp", "energy", "dice(0.9)", "default"]
rows = ood.benchmark(names, train=train, test=test, ood=ood_sets, id_set="cifar10")
print(rows)

# %%
# The average hides that sets differ. These are the scores themselves: a threshold accepts what lies to its right.

scores, thresholds, notes = {}, {}, {}
for name in ("energy", "default"):
    detector = ood.parse(name).fit(train)
    id_scores = detector.score(test)
    scores[name] = id_scores.numpy(), {key: detector.score(part).numpy() for key, part in ood_sets.items()}
    thresholds[name] = ood.calibrate(id_scores, id_rate=0.95).value
    rates = [row.fpr95 for row in rows if row.detector.startswith(name)]
    notes[name] = f"accepts {sum(rates) / len(rates):.0%} of OOD images"
plt.figure(score_histograms(scores, thresholds, notes))
plt.show()
