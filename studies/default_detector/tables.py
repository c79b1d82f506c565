"""The tables, numbers and figure of ``docs/default-detector.md``, from the measurements of the study."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from oodles.plots import ID_COLOUR, INK, OOD_COLOURS, STYLE, save_figure
from oodles.selection.detector import Choice
from studies.default_detector.networks import GROUPS, UNSEEN, Network
from studies.pages import DOCS, markdown_table
from studies.sources import accuracy_of

EARLIER, EARLIER_CHECKED, EARLIER_SIGNED = "earlier", "earlier, with checks", "earlier, signed"
FEWER = ("2 chain + ViM", "2 chain + ViM + KNN")
MAHALANOBIS = "2 chain + ViM + KNN + Mahalanobis"
CHOSEN = "2 chain + ViM + KNN + Mahalanobis++"
MORE = ("3 chain + ViM + KNN + Mahalanobis++", "2 chain + SCALE + ViM + KNN + Mahalanobis++")
PREVIOUS = {"plain": EARLIER, "convnext": EARLIER_SIGNED, "table": EARLIER, "files": EARLIER_SIGNED}
"""The members that the previous default had on the networks that the choice did not see."""
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
    "densenet_cifar10": "DenseNet-101 of the DICE authors, CIFAR-10, other OOD sets",
    "densenet_cifar100": "DenseNet-101 of the DICE authors, CIFAR-100, other OOD sets",
    "small_cifar10": "a small CNN, CIFAR-10",
    "lite0_imagenet": "EfficientNet-Lite0, ImageNet",
    "lite1_imagenet": "EfficientNet-Lite1, ImageNet",
    "lite2_imagenet": "EfficientNet-Lite2, ImageNet",
    "vit": "a small ViT with a convolutional stem, CIFAR-10",
    "vit-token": "a small ViT with plain patches and a class token, CIFAR-10",
    "mixer": "a small MLP-Mixer, CIFAR-10",
    "lite0-projected": "lite0 with a trained projection that ends in a LayerNorm",
    "lite1-projected": "lite1-digits with such a projection",
    "plain": "six convolutions with ReLU, CIFAR-10",
    "convnext": "a small ConvNeXt, CIFAR-10",
    "table": "an MLP with ReLU on tables of 64 columns, the digits 0 to 6",
    "files": "a byte-level convolutional network with a LayerNorm, six kinds of text files",
}

Figures = dict[str, dict[str, float]]
"""A number for each network and detector."""
Splits = dict[str, dict[str, list[float]]]
"""For each network and set of members, a number for each random split."""


def described(networks: Mapping[str, Network]) -> str:
    """One line per network."""
    rows = []
    groups = {name: group for group, names in GROUPS.items() for name in names}
    for name, network in networks.items():
        train = network.train
        negative = float((train.embedding < 0).double().mean())
        accuracy = "" if network.test.labels is None else f"{accuracy_of(network.test):.1%}"
        sizes = [f"{train.width}", f"{negative:.0%}", f"{train.classes}", f"{len(train):,}"]
        rows.append([name, groups[name], DESCRIPTIONS[name], *sizes, accuracy])
    columns = ["network", "group", "description", "units", "negative", "classes", "rows to fit on", "accuracy"]
    return markdown_table(columns, rows)


def over_splits(found: Splits, name: str, group: str) -> tuple[float, float]:
    """Mean and standard deviation over the splits of a set's average over the networks of a group."""
    averages = np.mean([found[network][name] for network in GROUPS[group]], axis=0)
    return float(averages.mean()), float(averages.std(ddof=1))


def average(values: Figures, name: str, group: str) -> float:
    """The mean over the networks of a group."""
    return float(np.mean([values[network][name] for network in GROUPS[group]]))


def sets(found: Splits) -> str:
    """One line per set of members, one column per group that influenced the choice."""
    groups = [group for group in GROUPS if group != "unseen"]
    rows = []
    for name in next(iter(found.values())):
        values = (over_splits(found, name, group) for group in groups)
        label = f"**{name} (chosen)**" if name == CHOSEN else name
        rows.append([label, *(f"{mean:.1f} ± {spread:.1f}" for mean, spread in values)])
    return markdown_table(["members", *groups], rows)


def set_values(found: Splits, fpr95: Figures) -> dict[str, str]:
    """The numbers of sets in the text."""

    def of(name: str, group: str) -> float:
        return over_splits(found, name, group)[0]

    new = (*FEWER, MAHALANOBIS, CHOSEN, *MORE)
    textures = "lite2-textures"
    values = {
        "set_earlier_nine": of(EARLIER, "nine"),
        "set_earlier_checked_unseen": of(EARLIER_CHECKED, "unseen"),
        "set_earlier_signed_signed": of(EARLIER_SIGNED, "signed"),
        **{f"set_without_pp_{group}": of(FEWER[1], group) for group in ("nine", "six", "signed")},
        **{f"set_chosen_{group}": of(CHOSEN, group) for group in GROUPS},
        **{f"gap_{group}": of(CHOSEN, group) - min(of(name, group) for name in new) for group in ("nine", "six")},
        "signed_cost": of(CHOSEN, "signed") - of(EARLIER_SIGNED, "signed"),
        "three_six": of(CHOSEN, "six") - of(MORE[0], "six"),
        "previous_unseen": float(np.mean([found[name][previous] for name, previous in PREVIOUS.items()])),
        "plain_without_pp": float(np.mean(found["plain"][FEWER[1]])),
        "textures_default": fpr95[textures]["default"],
        "textures_splits": float(np.mean(found[textures][CHOSEN])),
    }
    return {key: f"{value:.1f}" for key, value in values.items()}


def unseen(found: Splits, fpr95: Figures) -> str:
    """Sets and single detectors on the networks that the choice did not see."""
    rows = []
    for name in next(iter(found.values())):
        values = [float(np.mean(found[network][name])) for network in UNSEEN]
        spreads = [float(np.std(found[network][name], ddof=1)) for network in UNSEEN]
        label = f"**{name} (chosen)**" if name == CHOSEN else name
        cells = [f"{value:.1f} ± {spread:.1f}" for value, spread in zip(values, spreads, strict=True)]
        rows.append([label, *cells, f"{np.mean(values):.1f}"])
    for name in ("default", "msp", "energy", "knn", "mahalanobis_pp", "mme"):
        values = [fpr95[network][name] for network in UNSEEN]
        rows.append([f"`{name}`", *(f"{value:.1f}" for value in values), f"{np.mean(values):.1f}"])
    return markdown_table(["", *UNSEEN, "average"], rows)


def single(names: Sequence[str], fpr95: Figures, auroc: Figures) -> str:
    """One line per detector, one column per group."""
    rows = []
    for name in names:
        values = [*(average(fpr95, name, group) for group in GROUPS), average(auroc, name, "nine")]
        values.append(average(auroc, name, "six"))
        rows.append([f"`{name}`", *(f"{value:.1f}" for value in values)])
    return markdown_table(["detector", *GROUPS, "AUROC, nine", "AUROC, six"], rows)


def single_values(names: Sequence[str], fpr95: Figures) -> dict[str, str]:
    """The numbers in the text: those of the default, of MME and of the best single detector of each group."""
    found: dict[str, str] = {}
    for group in GROUPS:
        best = best_single(names, {name: average(fpr95, name, group) for name in names})
        found |= {f"best_{group}": f"`{best}`", f"best_value_{group}": f"{average(fpr95, best, group):.1f}"}
        found[f"default_{group}"] = f"{average(fpr95, 'default', group):.1f}"
    found |= {f"mme_{group}": f"{average(fpr95, 'mme', group):.1f}" for group in ("nine", "six")}
    return found


def best_single(names: Iterable[str], values: Mapping[str, float]) -> str:
    """The detector with the smallest value that is no ensemble."""
    return min((name for name in names if name not in ("default", "mme")), key=values.__getitem__)


def each(names: Sequence[str], fpr95: Figures) -> str:
    """One line per network: the default, energy, MME and the best single detector in hindsight."""
    rows = []
    for network, values in fpr95.items():
        best = best_single(names, values)
        cells = [f"{values[name]:.1f}" for name in ("default", "energy", "mme")]
        rows.append([network, *cells, f"{values[best]:.1f} (`{best}`)"])
    return markdown_table(["network", "default", "energy", "mme", "best single detector in hindsight"], rows)


def far(found: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """The share accepted without and with the checks."""
    rows = [
        [change, *(f"{part[change][0]:.0f} / {part[change][1]:.0f}" for part in found.values())]
        for change in next(iter(found.values()))
    ]
    return markdown_table(["change", *found], rows)


def stages(rows: Mapping[str, str], fpr95: Figures) -> str:
    """The chain without each of its stages."""
    groups = ("nine", "six")
    cells = [[label, *(f"{average(fpr95, name, group):.1f}" for group in groups)] for label, name in rows.items()]
    return markdown_table(["chain", *groups], cells)


def select(choices: Mapping[str, tuple[Choice, float, float]]) -> str:
    """What select chose, and the default for comparison."""
    rows = [
        [name, f"`{choice.detector.spec}`", f"{choice.agreement:.0%}", f"{mine:.1f}", f"{usual:.1f}"]
        for name, (choice, mine, usual) in choices.items()
    ]
    return markdown_table(["network", "chosen", "resamples that agree", "its FPR95", "the default's"], rows)


def select_verdict(choices: Mapping[str, tuple[Choice, float, float]]) -> str:
    """Whether choosing pays."""
    _, mine, usual = zip(*choices.values(), strict=True)
    others = [name for name, (choice, _, _) in choices.items() if choice.detector.spec != "default"]
    better = sum(choices[name][1] < choices[name][2] for name in others)
    difference = float(np.mean(usual) - np.mean(mine))
    word = "better" if difference > 0 else "worse"
    return (
        f"On these {len(choices)} networks, `select` replaces the default {len(others)} times and lowers FPR95 in "
        f"{better} of these cases.\nOn average, its choice has an FPR95 of {np.mean(mine):.1f} % and the default has "
        f"{np.mean(usual):.1f} %, so `select` is {abs(difference):.1f} points {word}."
    )


def draw(found: Splits) -> None:
    """The sets as points: the nine networks on one axis, the six on the other."""
    labels = {
        EARLIER: ("earlier", (-9, 5)),
        EARLIER_CHECKED: ("earlier, with checks", (9, 5)),
        FEWER[0]: ("2 chain + ViM", (9, -18)),
        FEWER[1]: ("2 chain + ViM + KNN", (9, -18)),
        MAHALANOBIS: ("2 chain + ViM + KNN\n+ Mahalanobis", (9, 6)),
        CHOSEN: ("2 chain + ViM + KNN\n+ Mahalanobis++ (chosen)", (2, 36)),
        MORE[0]: ("3 chain + ViM + KNN\n+ Mahalanobis++", (-9, -32)),
        MORE[1]: ("2 chain + SCALE + ViM\n+ KNN + Mahalanobis++", (-9, 5)),
    }
    with mpl.rc_context(STYLE | {"font.size": 10}):
        figure = Figure(figsize=(7, 4.8), layout="constrained")
        axis = figure.subplots()
        for name, (label, offset) in labels.items():
            (x, x_spread), (y, y_spread) = (over_splits(found, name, group) for group in ("nine", "six"))
            colour = OOD_COLOURS[0] if name == CHOSEN else ID_COLOUR if name in (EARLIER, EARLIER_CHECKED) else INK
            axis.errorbar(x, y, y_spread, x_spread, fmt="o", color=colour, markersize=7, linewidth=1)
            side = "right" if offset[0] < 0 else "left"
            weight = "bold" if name == CHOSEN else "normal"
            axis.annotate(
                label, (x, y), offset, textcoords="offset points", ha=side, va="bottom", color=colour, weight=weight
            )
        axis.set_xlabel("FPR95 on the nine networks, % (lower is better)")
        axis.set_ylabel("FPR95 on the six networks, % (lower is better)")
        axis.margins(0.25, 0.15)
    save_figure(figure, DOCS / "images" / "default-sets.png")
