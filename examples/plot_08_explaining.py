"""
Explaining a rejection
======================

Why was this input rejected? ``guard.explain`` says how unusual its score is, which training inputs are nearest, and,
for DICE, which units make up the logit of the predicted class.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import nn

import oodles as ood

torch.manual_seed(0)
pixels, classes = shuffle(*load_digits(return_X_y=True), random_state=0)
images, labels = torch.tensor(pixels).float() / 16, torch.tensor(classes)
unknown, images, labels = images[labels >= 8], images[labels < 8], labels[labels < 8]  # 8 and 9 are not learned
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(150):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images[:1000]), labels[:1000]).backward()
    optimiser.step()
train = ood.extract(model, [(images[:1000], labels[:1000])], progress=False)
held_out = ood.extract(model, [(images[1000:], labels[1000:])], progress=False)

# %%
# Two detectors combined by their ranks on held-out images; either may be the sceptical one.

both = ood.combine(["dice(0.5)", "knn(5)"], train=train, held_out=held_out)
guard = ood.Guard(model, both, ood.calibrate(both.score(held_out)), classes=[str(digit) for digit in range(8)])
row = int(guard(unknown).score.argmin())
explanation = guard.explain(unknown[row : row + 1], train=train)[0]
print(explanation)

# %%
# The same as plain data, which can be drawn: the input and the training images nearest to it, and what the least usual
# units add to the logit of the predicted class.

findings = {finding["spec"].partition("(")[0]: finding for finding in explanation.as_record()["findings"]}
figure, axes = plt.subplots(1, 6, figsize=(8, 1.7), layout="constrained")
axes[0].imshow(unknown[row].view(8, 8).numpy(), cmap="gray_r")
axes[0].set_title(f"a {explanation.label}?", color="#D55E00")
for axis, neighbour in zip(axes[1:], findings["knn"]["neighbours"], strict=True):
    axis.imshow(images[neighbour["train_row"]].view(8, 8).numpy(), cmap="gray_r")
    axis.set_title(f"{neighbour['class_name']}, cosine {neighbour['similarity']:.2f}", fontsize=9)
plt.setp(axes, xticks=[], yticks=[])

units = findings["dice"]["contributions"]["least_usual"]
names = [f"unit {unit['unit']}" for unit in units]
figure, axis = plt.subplots(figsize=(5, 2.4), layout="constrained")
axis.barh(names, [unit["usual"] for unit in units], color="0.85", label="usually")
axis.barh(names, [unit["contribution"] for unit in units], height=0.4, color="#D55E00", label="here")
axis.set_xlabel(f"adds to the logit of {explanation.class_name}")
axis.legend(frameon=False)
plt.show()
