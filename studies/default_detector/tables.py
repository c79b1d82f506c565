"""The tables, sentences and figure of ``docs/default-detector.md``, from the numbers of the study."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import spearmanr

from oodles.detectors import parse
from oodles.functional import energy, top_ratio
from oodles.plots import save_figure
from oodles.selection.detector import Choice
from studies.default_detector.networks import Network
from studies.pages import DOCS, markdown_table
from studies.sources import accuracy_of

PUBLISHED = (
    *("msp", "energy", "gen", "react(90)", "react(95)", "vra(60)", "dice(0.9)", "ash_b(90)", "ash_s(90)"),
    *("scale(85)", "lts(95)", "vim", "knn", "nnguide", "fdbd", "nci", "neco", "she", "weiper"),
    *("mahalanobis", "mahalanobis_pp", "rmds", "residual", "pnml", "cadref", "optfs", "gradnorm"),
)
PERCENTILES = (95, 97, 99)
DESCRIPTIONS = {
    "cifar10": "DenseNet-101 of the DICE authors, CIFAR-10",
    "cifar100": "DenseNet-101 of the DICE authors, CIFAR-100",
    "small": "cifar10-small, which comes with the package",
    "short": "its architecture after 4 epochs on 10,000 images",
    "digits": "its architecture, trained on 4,000 SVHN digits",
    "lite0": "EfficientNet-Lite0 of ImageNet, frozen, with a head for CIFAR-10",
    "lite0-100": "the same with a head for CIFAR-100",
    "lite1-digits": "EfficientNet-Lite1, frozen, with a head for SVHN digits",
    "lite2-textures": "EfficientNet-Lite2, frozen, with a head for ten textures",
    "vit": "a small ViT with a convolutional stem, CIFAR-10",
    "vit-token": "a small ViT with plain patches and a class token, CIFAR-10",
    "mixer": "a small MLP-Mixer, CIFAR-10",
    "lite0-projected": "lite0 with a trained projection that ends in a LayerNorm",
    "lite1-projected": "lite1-digits with such a projection",
    "plain": "six convolutions with ReLU, CIFAR-10",
    "convnext": "a small ConvNeXt, CIFAR-10",
}

Figures = dict[str, dict[str, float]]
"""A number for each network and spec."""


def described(networks: dict[str, Network]) -> str:
    """One line per network."""
    rows = []
    for name, network in networks.items():
        negative = float((network.train.embedding < 0).double().mean())
        sizes = [f"{network.train.width}", f"{negative:.0%}", f"{network.train.classes}", f"{len(network.train):,}"]
        rows.append([name, DESCRIPTIONS[name], *sizes, f"{accuracy_of(network.test):.1%}"])
    columns = ["network", "what it is", "units", "negative", "classes", "rows to fit on", "accuracy"]
    return markdown_table(columns, rows)


def average(values: Figures, spec: str) -> float:
    """The mean over networks."""
    return float(np.mean([part[spec] for part in values.values()]))


def table(specs: Sequence[str], fpr95: Figures, auroc: Figures, names: Sequence[str] | None = None) -> str:
    """One line per detector, one column per network, and the averages."""
    rows = []
    for name, text in zip(names or specs, specs, strict=True):
        spec = text if text in next(iter(fpr95.values())) else parse(text).spec
        values = [*(part[spec] for part in fpr95.values()), average(fpr95, spec), average(auroc, spec)]
        rows.append([name, *(f"{value:.1f}" for value in values)])
    return markdown_table(["", *fpr95, "average", "AUROC"], rows)


def verdict(fpr95: Figures, chain: str, default: str) -> str:
    """The difference from energy and from the best single detector, and on which networks a single one is better."""
    singles = {text: average(fpr95, parse(text).spec) for text in PUBLISHED}
    best = min(singles, key=lambda text: singles[text])
    mine = average(fpr95, default)
    lines = [
        f"The default's average is {mine:.1f}: {singles['energy'] - mine:.1f} points below energy and "
        f"{singles[best] - mine:.1f} below the best single detector, {best}. ReActScaleDICE's is "
        f"{average(fpr95, chain):.1f}."
    ]
    first = list(fpr95)[:3]
    few = {text: np.mean([fpr95[name][parse(text).spec] for name in first]) for text in PUBLISHED}
    lines.append(
        f"On {', '.join(first)} alone, the default has {np.mean([fpr95[name][default] for name in first]):.1f}, energy "
        f"{few['energy']:.1f} and the best single detector {min(few.values()):.1f} "
        f"({min(few, key=lambda text: few[text])})."
    )
    better = [
        f"{name} ({min(single, key=lambda text: fpr95[name][parse(text).spec])} "
        f"{min(fpr95[name][parse(text).spec] for text in single):.1f})"
        for name in fpr95
        if (single := [text for text in (*PUBLISHED, chain) if fpr95[name][parse(text).spec] < fpr95[name][default]])
    ]
    where = f"on {', '.join(better)}" if better else "on none of the networks"
    return " ".join([*lines, f"A single detector is better {where}."])


def order(fpr95: Figures, chain: str, swapped: str) -> str:
    """Clipping before scaling, and the other way round."""
    return (
        f"Clipping before scaling has an average of {average(fpr95, chain):.1f}, scaling before clipping "
        f"{average(fpr95, swapped):.1f}."
    )


def clipping(fpr95: Figures, auroc: Figures, chain: str, per_unit: dict[str, str]) -> str:
    """Percentiles of all activations, of the positive ones, of each unit."""
    positive = {f"of positive activations, {p}": f"positive {p}" for p in PERCENTILES}
    rows = {"of all activations, 97": chain, **positive, **per_unit}
    return table(list(rows.values()), fpr95, auroc, list(rows))


def gain(fpr95: Figures, chain: str) -> str:
    """ReActScaleDICE's gain over energy on each network."""
    return ", ".join(f"{fpr95[name]['energy'] - fpr95[name][chain]:+.1f} ({name})" for name in fpr95)


def predictors(networks: dict[str, Network], fpr95: Figures, chain: str) -> str:
    """Statistics of ID rows, and their correlation with the gain over energy."""
    seen: dict[str, list[float]] = {}
    for network in networks.values():
        rows = network.test
        ratio = top_ratio(rows.embedding.float(), 65)[:, 0]
        values = {
            "accuracy": accuracy_of(rows),
            "fraction of activations that are 0": float((rows.embedding == 0).double().mean()),
            "mean of SCALE's ratio": float(ratio.mean()),
            "standard deviation of the ratio, divided by its mean": float(ratio.std() / ratio.mean()),
            "correlation of the ratio with energy": float(
                torch.corrcoef(torch.stack([ratio, energy(rows.logits.float())]))[0, 1]
            ),
            "largest activation, divided by the mean": float(
                rows.embedding.float().max() / rows.embedding.float().mean()
            ),
        }
        for name, value in values.items():
            seen.setdefault(name, []).append(value)
    gains = [part["energy"] - part[chain] for part in fpr95.values()]
    lines = [
        [name, *(f"{value:.2f}" for value in values), f"{spearmanr(values, gains).statistic:+.2f}"]
        for name, values in seen.items()
    ]
    return markdown_table(["", *networks, "correlation"], lines)


def crossed_sets_of(sets: dict[tuple[str, ...], dict[str, float]]) -> tuple[str, dict[str, float]]:
    """Leave-one-network-out cross-validation over sets of members."""
    rows, picked = [], {}
    for name in next(iter(sets.values())):
        best = min(sets, key=lambda members: np.mean([value for key, value in sets[members].items() if key != name]))
        picked[name] = sets[best][name]
        rows.append([name, ", ".join(best), f"{picked[name]:.1f}"])
    whole = {members: float(np.mean(list(values.values()))) for members, values in sets.items()}
    best = min(whole, key=lambda members: whole[members])
    spread = f"{np.mean(list(whole.values())):.1f} ({min(whole.values()):.1f} to {max(whole.values()):.1f})"
    rows += [["none", ", ".join(best), f"{whole[best]:.1f}"], ["all sets, average over networks", "", spread]]
    return markdown_table(["left out", "chosen on the others", "its FPR95"], rows), picked


def sets_verdict(picked: dict[str, float], fpr95: Figures, default: str) -> str:
    """The average over the networks that were left out."""
    best = min(PUBLISHED, key=lambda text: average(fpr95, parse(text).spec))
    return (
        f"The average of sets chosen this way is {np.mean(list(picked.values())):.1f}, compared with "
        f"{average(fpr95, parse(best).spec):.1f} for the best single detector in hindsight ({best}), "
        f"{average(fpr95, 'energy'):.1f} for energy and {average(fpr95, default):.1f} for the default "
        "(which was selected using these networks)."
    )


def shortfalls(fpr95: Figures, default: str) -> str:
    """How far the default is from the best single detector of each network."""
    found = []
    for name, part in fpr95.items():
        best = min(PUBLISHED, key=lambda text: part[parse(text).spec])
        found.append(f"{part[default] - part[parse(best).spec]:+.1f} on {name} ({best})")
    return ", ".join(found)


def crossed(grid: list[str], fpr95: Figures, default: str) -> str:
    """Leave-one-network-out cross-validation over single candidates."""
    rows = []
    for name, own in fpr95.items():
        others = [part for part in fpr95.values() if part is not own]
        pick = min(grid, key=lambda spec: np.mean([part[spec] for part in others]))
        best = min(grid, key=own.__getitem__)
        rows.append([name, pick, f"{own[pick]:.1f}", f"{own[default]:.1f}", f"{best} {own[best]:.1f}"])
    columns = ["left out", "chosen on the others", "its FPR95", "the default's", "the best in hindsight"]
    return markdown_table(columns, rows)


def chosen(choices: dict[str, Choice], fpr95: Figures, default: str) -> str:
    """What select chose, and fixed choices for comparison."""
    fixed = {"default": default, "DICE 0.9": "dice(0.9)+energy", "energy": "energy", "MSP": "msp"}
    rows = []
    for name, choice in choices.items():
        spec, own = choice.detector.spec, fpr95[name]
        best = min((row.spec for row in choice.candidates), key=own.__getitem__)
        values = [f"{own[other]:.1f}" for other in (spec, *fixed.values())]
        rows.append([name, spec, f"{choice.agreement:.0%}", *values, f"{best} {own[best]:.1f}"])
    return markdown_table(["network", "chosen", "agreement", "FPR95", *fixed, "best in hindsight"], rows)


def select_verdict(choices: dict[str, Choice], fpr95: Figures, default: str) -> str:
    """Whether choosing pays."""
    mine = np.mean([fpr95[name][choice.detector.spec] for name, choice in choices.items()])
    usual = average(fpr95, default)
    word = "no worse than" if mine <= usual + 0.05 else "worse than"
    return (
        f"The average of what it chooses is {mine:.1f}, compared with {usual:.1f} for the default: {word} not choosing."
    )


def agreement(choices: dict[str, Choice], fpr95: Figures) -> str:
    """Spearman's correlation of the candidates' ranking on each kind with that on the real sets."""
    kinds = list(next(iter(choices.values())).candidates[0].auroc)
    rows = []
    for name, choice in choices.items():
        real = [-fpr95[name][row.spec] for row in choice.candidates]
        seen = [
            *([row.auroc[kind] for row in choice.candidates] for kind in kinds),
            [row.utility for row in choice.candidates],
        ]
        rows.append([name, *(f"{spearmanr(values, real).statistic:.2f}" for values in seen)])
    return markdown_table(["", *(kind.replace("_", " ") for kind in kinds), "utility"], rows)


def draw(varied: dict[str, dict[float, str]], fpr95: Figures, chain: str) -> None:
    """One panel per setting."""
    figure, axes = plt.subplots(1, len(varied), figsize=(12, 4), sharey=True, layout="constrained")
    usual = [float(part.split("(")[1].rstrip(")")) for part in chain.split("+")[:3]]
    for axis, (label, line), mark in zip(axes, varied.items(), usual, strict=True):
        for name, part in fpr95.items():
            values = [part[parse(text).spec] for text in line.values()]
            axis.plot(range(len(line)), values, marker="o", label=name)
        axis.set_xticks(range(len(line)), [f"{value:g}" for value in line])
        axis.axvline(list(line).index(mark), linestyle="--", color="0.6", zorder=0)
        axis.set_xlabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("average FPR95, %")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right center")
    save_figure(figure, DOCS / "images" / "default-sensitivity.png")
