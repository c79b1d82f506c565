"""
Export a guard, score without PyTorch
=====================================

``guard.export`` writes network, detector and threshold as one ONNX graph, and compares it with PyTorch before it keeps
it. Where the guard runs, only NumPy and ONNX Runtime are needed: ``pip install 'oodles[onnx]'``.
"""

import json
import subprocess
import sys
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
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images[:1000]), labels[:1000]).backward()
    optimiser.step()
guard = ood.Guard.fit(model, [images[:1000]], calibration=[images[1000:1400]], detector="knn(5)")

# %%
# The other side is a process of its own, in which ``import torch`` fails as if it were not installed. The guard is
# checked when it is opened, and tried on test inputs that were exported with it.

SCORE = """
import json, sys
sys.modules["torch"] = None
import numpy as np, oodles as ood
guard = ood.Guard.open(sys.argv[1])
verdict = guard(np.load(sys.argv[2]))
print(json.dumps({"guard": repr(guard), "score": verdict.score.tolist(), "is_id": verdict.is_id.tolist()}))
"""
shown = torch.cat([images[1400:1406], 1 - images[1406:1412]])  # six of them white on black
with tempfile.TemporaryDirectory() as folder:
    guard.export(folder + "/guard.zip")
    np.save(folder + "/digits.npy", shown.numpy())
    command = [sys.executable, "-c", SCORE, folder + "/guard.zip", folder + "/digits.npy"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
difference = np.abs(guard(shown).score.numpy() - answer["score"]).max()
print(f"{answer['guard']} without torch; largest difference of scores: {difference:.1g}")
figure, axes = plt.subplots(1, 12, figsize=(9, 1.3), layout="constrained")
for axis, image, score, is_id in zip(axes, shown.view(-1, 8, 8).numpy(), answer["score"], answer["is_id"], strict=True):
    axis.imshow(image, cmap="gray_r")
    axis.set_title(f"{score:.2f}", color="black" if is_id else "#D55E00")
    axis.axis("off")
plt.show()
