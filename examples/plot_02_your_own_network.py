"""
A network of your own, from training to verdicts
================================================

A small CNN learns the handwritten digits 0 to 7. What does it do with an 8 or a 9, which it has never seen? It names
one of the eight digits it knows. A guard around the network says when not to believe it.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import oodles as ood

torch.manual_seed(0)
pixels, classes = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.tensor(classes)
known = labels < 8
order = torch.randperm(int(known.sum()))
train, held_out, test = order[:800], order[800:1100], order[1100:]
seen, seen_labels, unknown = images[known], labels[known], images[~known]

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 8)),
)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(30):
    for batch in train[torch.randperm(len(train))].split(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(seen[batch]), seen_labels[batch]).backward()
        optimiser.step()

# %%
# One call finds the network's last layer, fits the default detector on the training images and sets a threshold on
# images the network was not trained on, so that about 95 % of such images are accepted. A loader is any iterable
# of batches.

guard = ood.Guard.fit(
    model,
    [(seen[batch], seen_labels[batch]) for batch in train.split(100)],
    calibration=[(seen[batch], seen_labels[batch]) for batch in held_out.split(100)],
)
on_known, on_unknown = guard(seen[test]), guard(unknown)
print(f"accuracy on new images of 0 to 7: {(on_known.label == seen_labels[test]).float().mean():.1%}")
print(f"accepted: {on_known.is_id.float().mean():.1%} of them, {on_unknown.is_id.float().mean():.1%} of 8s and 9s")
print(f"mean softmax probability of the label for 8s and 9s: {on_unknown.logits.softmax(1).amax(1).mean():.1%}")

# %%
# Eights and nines from the lowest score to the highest, with the network's answer; those in red are rejected.

figure, axes = plt.subplots(2, 10, figsize=(9, 2.3), layout="constrained")
shown = on_unknown.score.argsort()[torch.linspace(0, len(unknown) - 1, axes.size).long()]
for axis, row in zip(axes.flat, shown.tolist(), strict=True):
    axis.imshow(unknown[row, 0].numpy(), cmap="gray_r")
    axis.set_title(f"{on_unknown.label[row]}?", color="black" if on_unknown.is_id[row] else "#D55E00")
    axis.axis("off")
plt.show()
