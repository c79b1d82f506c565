"""
Composing detectors
===================

Many methods are one of three things: they *shape* the embedding (ReAct clips it, SCALE scales it), *sparsify* the last
layer (DICE) or *score* the logits (energy, MSP). So they combine, in Python or as text.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import torch

import oodles as ood
from oodles.bench.demo import load_pack
from oodles.detectors import SCALE

train, test, ood_sets, _ = load_pack()
chain = ood.DICE(p=0.1, shape=[ood.ReAct(percentile=97), SCALE(percentile=65)])
same = ood.parse("react(97)+scale(65)+dice(0.1)+energy")
print(chain.spec)
print("the same scores:", torch.equal(chain.fit(train).score(test), same.fit(train).score(test)))

# %%
# Text is handy for grids. All 48 chains are fitted in one pass over the training features, because they learn from the
# same few statistics of them.

shapes = ["", "react(90)", "react(99)", "scale(65)", "scale(85)", "react(99)+scale(65)"]
sparsifiers = ["", "dice(0.1)", "dice(0.5)", "dice(0.9)"]
scores = ["energy", "msp"]
grid = {"+".join(filter(None, parts)): parts for parts in itertools.product(shapes, sparsifiers, scores)}
rows = ood.benchmark({name: name for name in grid}, train=train, test=test, ood=ood_sets)
average = {name: np.mean([row.fpr95 for row in rows if row.detector == name]) for name in grid}
for name in sorted(average, key=average.get)[:3]:
    print(f"{name}: FPR95 {average[name]:.1%}")

# %%
# FPR95 on average over the four sets; lower is better. What helps alone need not help together: neither the clipping at
# the 90th percentile nor MSP suits this network. Compare on yours.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axis, score in zip(axes, scores, strict=True):
    names = [["+".join(filter(None, (a, b, score))) for b in sparsifiers] for a in shapes]
    table = 100 * np.array([[average[name] for name in line] for line in names])
    axis.imshow(table, cmap="viridis_r", vmin=15, vmax=100, aspect="auto")
    for (y, x), value in np.ndenumerate(table):
        axis.text(x, y, f"{value:.0f}", ha="center", va="center", color="white" if value > 50 else "black")
    axis.set_xticks(range(len(sparsifiers)), [name or "dense" for name in sparsifiers])
    axis.set_yticks(range(len(shapes)), [name or "as it is" for name in shapes])
    axis.set_title(f"scored with {score}: FPR95 (%)")
plt.show()
