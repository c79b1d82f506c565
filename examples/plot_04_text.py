"""
A text classifier
=================

A guard takes whatever the model takes. This model tells sentences about weather, cooking and football apart by their
words. It knows nothing else, and should say so.
"""

import itertools
import zlib

import matplotlib.pyplot as plt
import torch
from torch import nn

import oodles as ood

PARTS = {
    "weather": ("fog|rain|snow|a storm|cold wind", "covers|reaches|leaves", "the coast|the hills|the valley|the north"),
    "cooking": ("the chef|my aunt|the baker", "boils|peels|fries|salts", "onions|the rice|potatoes|some carrots"),
    "football": ("our striker|our keeper|the captain", "saves|misses|wins|takes", "the penalty|a match|the ball|a cup"),
}
TIMES = "today|again|tonight|at last"
made = [itertools.product(*(part.split("|") for part in (*parts, TIMES))) for parts in PARTS.values()]
sentences = [(" ".join(words), label) for label, topic in enumerate(made) for words in topic]


def encode(texts: list[str]) -> torch.Tensor:
    """Eight numbers per sentence, one for each word; 0 is padding."""
    rows = [[1 + zlib.crc32(word.encode()) % 999 for word in text.split()][:8] for text in texts]
    return torch.tensor([row + [0] * (8 - len(row)) for row in rows])


torch.manual_seed(0)
order = torch.randperm(len(sentences))
tokens, labels = encode([text for text, _ in sentences])[order], torch.tensor([label for _, label in sentences])[order]
model = nn.Sequential(nn.EmbeddingBag(1000, 32, padding_idx=0), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))
optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(tokens[:400]), labels[:400]).backward()
    optimiser.step()

# %%
# 400 sentences are for training, the others for the threshold. A sentence is accepted if it is close enough to its
# fifth nearest training sentence. Nothing below is specific to text.

batches = list(zip(tokens.split(400), labels.split(400), strict=True))
guard = ood.Guard.fit(model, batches[:1], calibration=batches[1:], detector="knn(5)", classes=[*PARTS])
new = ["snow reaches the coast again", "the baker fries onions at last", "our keeper misses the ball"]
new += ["snow covers the ball today", "the court adjourns until monday", "shares fell after the merger"]
verdict = guard(encode(new))
names = [f"{text} = {guard.class_names[label]}?" for text, label in zip(new, verdict.label, strict=True)]
print("\n".join(f"{name} {'accepted' if ok else 'rejected'}" for name, ok in zip(names, verdict.is_id, strict=True)))
figure, axis = plt.subplots(figsize=(7, 2.4), layout="constrained")
axis.barh(names, verdict.score.numpy(), color=["#0072B2" if ok else "#D55E00" for ok in verdict.is_id])
axis.axvline(guard.threshold.value, color="black", linestyle="--")
axis.set(xlim=(0.5, 1), ylim=(5.6, -0.6), xlabel="score, and the threshold")
plt.show()
