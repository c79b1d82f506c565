"""What the code of papers and OpenOOD do, written anew: the usual ways that ours is compared with."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Scores = npt.NDArray[np.floating]


def broadcast_dice(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """DICE as its authors, OpenOOD and pytorch-ood score it: every product of a weight and an activation is stored."""
    return torch.logsumexp((embedding[:, None, :] * weight).sum(dim=2) + bias, dim=1)


def gradnorm_per_sample(head: nn.Linear, embedding: Tensor) -> Tensor:
    """GradNorm as its authors and OpenOOD score it: one backward pass for each row."""
    uniform = torch.full((1, head.out_features), 1 / head.out_features)
    head.weight.requires_grad_(True)
    norms = []
    for row in embedding:
        head.zero_grad()
        loss = -(uniform * head(row[None]).log_softmax(dim=1)).sum()
        loss.backward()
        assert head.weight.grad is not None
        norms.append(head.weight.grad.abs().sum())
    head.weight.requires_grad_(False)
    return torch.stack(norms)


def metrics_in_a_loop(ids: Scores, oods: Scores) -> dict[str, float]:
    """FPR95, AUROC, both AUPRs and the detection error, as the paper's code: one step of a loop for each score."""
    known, novel = np.sort(ids), np.sort(oods)
    true, false = [len(known)], [len(novel)]
    first, second = 0, 0
    for _ in range(len(known) + len(novel)):
        if first == len(known):
            true.append(true[-1])
            false.append(false[-1] - 1)
            second += 1
        elif second == len(novel) or known[first] <= novel[second]:
            true.append(true[-1] - 1)
            false.append(false[-1])
            first += 1
        else:
            true.append(true[-1])
            false.append(false[-1] - 1)
            second += 1
    tpr, fpr = np.array(true) / len(known), np.array(false) / len(novel)
    rejected, wrongly = len(novel) - np.array(false), len(known) - np.array(true)
    with np.errstate(invalid="ignore"):
        precision = np.nan_to_num(np.array(true) / (np.array(true) + np.array(false)), nan=1.0)
        precision_ood = np.nan_to_num(rejected / (rejected + wrongly), nan=1.0)
    return {
        "fpr95": float(fpr[np.abs(tpr - 0.95).argmin()]),
        "auroc": float(-np.trapezoid(tpr, fpr)),
        "aupr_id": float(-np.trapezoid(precision, tpr)),
        "aupr_ood": float(np.trapezoid(precision_ood, 1 - fpr)),
        "detection_error": float((0.5 * (1 - tpr + fpr)).min()),
    }


def metrics_of_scikit_learn(ids: Scores, oods: Scores) -> dict[str, float]:
    """The same metrics but the detection error, as OpenOOD: curves of scikit-learn."""
    from sklearn.metrics import auc, precision_recall_curve, roc_curve

    truth = np.concatenate([np.ones(len(ids)), np.zeros(len(oods))])
    scores = np.concatenate([ids, oods])
    fpr, tpr, _ = roc_curve(truth, scores)
    precision, recall, _ = precision_recall_curve(truth, scores)
    precision_ood, recall_ood, _ = precision_recall_curve(1 - truth, -scores)
    return {
        "fpr95": float(fpr[np.argmax(tpr >= 0.95)]),
        "auroc": float(auc(fpr, tpr)),
        "aupr_id": float(auc(recall, precision)),
        "aupr_ood": float(auc(recall_ood, precision_ood)),
    }


def metrics_of_pytorch_ood(package: object) -> Callable[[Scores, Scores], dict[str, float]]:
    """All metrics of pytorch-ood."""

    def compute(ids: Scores, oods: Scores) -> dict[str, float]:
        metrics = package.metrics.OODMetrics()  # type: ignore[attr-defined]
        labels = torch.cat([torch.zeros(len(ids)), torch.full((len(oods),), -1.0)]).long()
        metrics.update(-torch.from_numpy(np.concatenate([ids, oods])), labels)
        result: dict[str, float] = metrics.compute()
        return result

    return compute
