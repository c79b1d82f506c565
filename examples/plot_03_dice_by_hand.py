"""
DICE by hand
============

DICE (Sun & Li, ECCV 2022) needs only the last layer and the mean embedding of the training data: 15 lines of PyTorch.
They give the same scores as :class:`oodles.DICE`.
"""

import matplotlib.pyplot as plt
import torch

import oodles as ood
from oodles.bench.demo import load_pack

train, test, ood_sets, _ = load_pack()

# %%
# A weight's contribution to a logit is the weight times the unit's activation. DICE averages it over the training data,
# keeps the tenth of all weights that contributes most, and sets the others to zero. The score is the energy, the
# log-sum-exp of the new logits.

weight, bias = train.head.weight.float(), train.head.bias.float()
mean = train.embedding.double().mean(dim=0)
contribution = weight.double() * mean
dropped = int(0.9 * weight.numel())
cut = contribution.flatten().sort().values[dropped]
mask = contribution >= cut
sparse = weight * mask


def by_hand(features: ood.Features) -> torch.Tensor:
    """Energy of the logits under the sparse head."""
    logits = features.embedding.float() @ sparse.T + bias
    return logits.logsumexp(dim=1)


# %%
# The same with ``oodles``, which also fits in parts, saves, exports, and combines DICE with other stages.

detector = ood.DICE(p=0.9).fit(train)
for name, features in {"test": test, **ood_sets}.items():
    difference = (detector.score(features) - by_hand(features)).abs().max()
    print(f"{name}: {len(features)} rows, largest difference {difference:.1g}")
    assert difference < 1e-4
print(f"{mask.sum()} of {mask.numel()} weights are kept, the same: {torch.equal(detector.weight_, sparse)}")

# %%
# A class uses few units. Sorted by what they add on average to the logit of a cat, most add nothing, and what makes a
# cat a cat comes from the units that are kept. SVHN's house numbers get less from those.

order, cat = contribution[3].argsort(), test.logits.argmax(dim=1) == 3
figure, axis = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for label, rows in {"SVHN": ood_sets["svhn"].embedding, "cats": test.embedding[cat]}.items():
    added = (rows.float().mean(dim=0) * weight[3])[order]
    axis.plot(added, color="#0072B2" if label == "cats" else "#D55E00", linewidth=1, label=label)
axis.fill_between(range(len(order)), *axis.get_ylim(), where=mask[3][order], color="#000000", alpha=0.1, label="kept")
axis.set(xlabel="unit, by mean ID contribution", ylabel="adds to the logit of cat")
axis.legend(frameon=False)
plt.show()
