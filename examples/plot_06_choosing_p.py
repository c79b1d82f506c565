"""
Choosing DICE's p without OOD data
==================================

How many weights should DICE drop? The answer depends on the network, and must not come from the OOD data one is tested
on. :func:`oodles.selection.select_p` compares held-out ID rows with synthetic outliers instead.
"""

import matplotlib.pyplot as plt
import numpy as np

import oodles as ood
from oodles.bench.demo import load_pack
from oodles.selection import mixed_features, select_p
from oodles.selection.sparsity import FINE_GRID

train, test, ood_sets, _ = load_pack()
held_out, test = test[: len(test) // 2], test[len(test) // 2 :]

# %%
# With a model at hand, ``ood.selection.noise_features`` and ``outlier_features`` make outliers from images. From
# features alone there are means of two embeddings of different classes, and units shuffled over rows.

outliers = mixed_features(held_out)
choices = {
    kind: select_p(ood.DICE(), train=train, held_out=held_out, outliers=rows, grid=FINE_GRID)
    for kind, rows in outliers.items()
}
for kind, choice in choices.items():
    print(f"{kind}: {choice.verdict}")

# %%
# Was that a good choice? Here real OOD sets can tell. They are only for the test, and played no part in the choice.

rows = ood.benchmark([ood.DICE(p=p) for p in FINE_GRID], train=train, test=test, ood=ood_sets)
real = {name: np.array([row.auroc for row in rows if row.ood_set == name]) for name in ood_sets}
average = np.mean(list(real.values()), axis=0)
print(f"best on the real OOD sets: p={FINE_GRID[average.argmax()]:g} with AUROC {average.max():.1%}")
for kind, choice in choices.items():
    print(f"chosen with {kind} outliers: p={choice.p:g} with AUROC {average[FINE_GRID.index(choice.p)]:.1%}")

# %%
# Most units of this network are almost always zero, so that any p from 0.1 to 0.9 drops the same contributions. Both
# kinds of outliers prefer a smaller p than the real sets do, which costs a little. A choice from ID data alone is not
# perfect, but it avoids the cliff at the right.

figure, axis = plt.subplots(figsize=(6.8, 3.6), layout="constrained")
places = np.arange(len(FINE_GRID))
for name, values in real.items():
    axis.plot(places, 100 * values, color="0.7", linewidth=1, label=f"real: {name}")
axis.plot(places, 100 * average, color="black", linewidth=2, label="real: average")
for colour, (kind, choice) in zip(("#0072B2", "#D55E00"), choices.items(), strict=True):
    curve = [100 * choice.curve[p].auroc for p in FINE_GRID]
    axis.plot(places, curve, "o-", color=colour, markersize=3, label=f"synthetic: {kind}")
    axis.plot(FINE_GRID.index(choice.p), 100 * choice.curve[choice.p].auroc, "o", ms=12, mfc="none", color=colour)
axis.set_xticks(places, [f"{p:g}" for p in FINE_GRID], rotation=90)
axis.set(xlabel="sparsity p (chosen: circles)", ylabel="AUROC (%)")
axis.legend(frameon=False, fontsize=8)
plt.show()
