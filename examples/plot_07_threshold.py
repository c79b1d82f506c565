"""
A guard with a threshold
========================

A score is not a decision. :func:`oodles.calibrate` turns one into the other: it sets the largest threshold that accepts
a new ID input with at least the probability you ask for. That holds for any network and detector, if the scores it is
given are those of inputs the network was not trained on.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import nn

import oodles as ood

torch.manual_seed(0)
pixels, classes = shuffle(*load_digits(return_X_y=True), random_state=0)
images, labels = torch.tensor(pixels).float() / 16, torch.tensor(classes)
unknown, images, labels = images[labels >= 8], images[labels < 8], labels[labels < 8]  # 8 and 9 are not learned
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(150):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images[:500]), labels[:500]).backward()
    optimiser.step()

# %%
# Network and detector have seen 500 images. The others are divided at random, 50 times: 400 to calibrate on, and the
# rest to see what is accepted. Calibrated on training images, nothing would be: each is its own nearest neighbour.

train, new = (ood.extract(model, [images[part]], progress=False) for part in (slice(500), slice(500, None)))
detector = ood.KNN(k=1).fit(train)
train_scores, new_scores = detector.score(train).numpy(), detector.score(new).numpy()
id_rates, divisions = np.linspace(0.5, 0.99, 25), np.random.default_rng(0).permuted([new_scores] * 50, axis=1)
held_out = [[ood.calibrate(row[:400], rate).is_id(row[400:]).mean() for row in divisions] for rate in id_rates]
trained = [ood.calibrate(train_scores, rate).is_id(new_scores).mean() for rate in id_rates]
figure, axis = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
axis.fill_between(id_rates, *np.quantile(held_out, [0.05, 0.95], axis=1), alpha=0.3, label="90 % of divisions")
axis.plot(id_rates, np.mean(held_out, axis=1), label="calibrated on held-out images")
axis.plot(id_rates, trained, color="#D55E00", label="calibrated on training images")
axis.plot(id_rates, id_rates, color="black", linestyle=":", label="asked for")
axis.set(xlabel="id_rate", ylabel="fraction of new ID images accepted")
axis.legend(frameon=False)
plt.show()

# %%
# Model, detector and threshold make a guard: a module that gives the model's own logits, and a verdict.

guard = ood.Guard(model, detector, ood.calibrate(new_scores[:400], id_rate=0.95))
print(f"accepted: {guard(images[900:]).is_id.float().mean():.1%} of new ID images", end=", ")
print(f"{guard(unknown).is_id.float().mean():.1%} of 8s and 9s, {guard(unknown * torch.nan).is_id.sum()} of NaNs")
with tempfile.TemporaryDirectory() as folder:
    guard.save(folder + "/guard")  # safetensors and JSON, and a fingerprint of the model
    print("loaded:", ood.Guard.load(folder + "/guard", model).threshold)
