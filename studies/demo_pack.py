"""Rebuild the features of the demo from the original images.

Features are extracted once per set into the store, a linear head is fitted on all training embeddings, and a random
selection of rows goes into the package, which contains no images and no published weights.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize

from oodles.bench import suite
from oodles.data.loaders import ImageLoader
from oodles.features import Features, Head
from oodles.network.extraction import extract
from studies import DATA, ROOT, STORE
from studies.sources import accuracy_of, authors_network

PACK = ROOT / "src" / "oodles" / "demo_pack"
ROWS = {"train": 2400, "test": 1017, "svhn": 1500, "textures": 1200, "places365": 1200, "places_crop": 1200}
L2 = 1e-4


def fit_head(features: Features) -> Head:
    """Multinomial logistic regression: mean cross-entropy + L2/2 |W|^2, float64 L-BFGS from zero."""
    x = features.embedding.double().numpy()
    y = np.asarray(features.labels)
    n, m, classes = len(x), features.width, int(y.max()) + 1
    onehot = np.eye(classes)[y]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = flat[: classes * m].reshape(classes, m), flat[classes * m :]
        logits = x @ weight.T + bias
        logits -= logits.max(axis=1, keepdims=True)
        log_total = np.log(np.exp(logits).sum(axis=1))
        residual = (np.exp(logits - log_total[:, None]) - onehot) / n
        loss = (log_total - logits[np.arange(n), y]).mean() + L2 / 2 * (weight**2).sum()
        return loss, np.concatenate([(residual.T @ x + L2 * weight).ravel(), residual.sum(axis=0)])

    result = minimize(
        objective,
        np.zeros(classes * (m + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-14, "gtol": 1e-8},
    )
    print(f"head: {result.nit} iterations, loss {result.fun:.6f}, largest gradient {np.abs(result.jac).max():.1e}")
    flat = torch.from_numpy(result.x)
    return Head(flat[: classes * m].view(classes, m).float(), flat[classes * m :].float())


def main(data: Path = DATA, store: Path = STORE) -> None:
    """Extract features, fit the head, select rows, write the pack and its card."""
    cifar10 = suite("cifar10")
    sets = cifar10.open_sets(data)
    network = authors_network(cifar10, data)
    full = {}
    for name in ROWS:
        labelled = name in ("train", "test")
        loader = ImageLoader(sets[name], cifar10.transform, labels=labelled)
        full[name] = extract(network, loader, labels=labelled, store=store / "demo" / name, note=name)
        print(f"{name}: {full[name]}", flush=True)
    head = fit_head(full["train"])
    with_head = {
        name: Features(full[name].embedding, labels=full[name].labels, head=head) for name in ("train", "test")
    }
    accuracy = {name: accuracy_of(features) for name, features in with_head.items()}
    shutil.rmtree(PACK, ignore_errors=True)
    for name, rows in ROWS.items():
        count = len(full[name])
        chosen = np.sort(np.random.default_rng(0).choice(count, size=min(rows, count), replace=False))
        part = full[name][torch.from_numpy(chosen)]
        pack = Features(part.embedding, labels=part.labels, head=head)
        pack.save(PACK / name, dtype=torch.float16, note=f"oodles demo: {name}")
    card = {
        "what": "Embeddings (float16, width 342) of real images by the DenseNet of the DICE paper's CIFAR-10 tables, "
        "and a linear head of our own: multinomial logistic regression on all "
        f"{len(full['train']):,} training embeddings at hand (L2 {L2}, float64 L-BFGS).",
        "what it is not": "It holds no image and no published weight. Sets are subsets, and the head is not the "
        "authors', so figures differ from the paper's.",
        "rows": {name: len(Features.load(PACK / name)) for name in ROWS},
        "chosen from": {name: len(features) for name, features in full.items()},
        "head accuracy": accuracy,
        "rebuild": "python -m studies demo_pack --data DATA",
    }
    (PACK / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    for lock in PACK.rglob(".lock"):
        lock.unlink()
    print(json.dumps(card, indent=1))
