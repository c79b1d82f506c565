"""Write ``docs/default-detector.md``: ``python tools/write_default_study.py DATA``.

DATA holds the archives unpacked, ``checkpoints/`` with the DICE authors' two networks, and ``cifar10-jpeg.zip``;
``study_networks.py`` tells which networks there are. Every candidate is fitted and scored on each of them.
"""

import argparse
import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import spearmanr
from study_networks import NETWORKS, Network, prepare
from torch import Tensor

from oodles.calibration import keep_apart
from oodles.choice import Choice, candidate_list, select
from oodles.detectors import Detector, Jury, Trio, default_detector, fit_together, parse
from oodles.detectors.combination import evidence, knots, rank
from oodles.features import Features
from oodles.functional import energy, top_ratio
from oodles.metrics import evaluate
from oodles.outliers import KINDS, NOISE
from oodles.plots import save_figure

DOCS = Path(__file__).parent.parent / "docs"
PUBLISHED = (
    *("msp", "energy", "gen", "react(90)", "react(95)", "vra(60, per='unit')", "dice(0.9)", "ash_b(90)", "ash_s(90)"),
    *("scale(85)", "lts(95)", "vim", "knn", "nnguide", "fdbd", "nci", "neco", "she", "weiper"),
    *("mahalanobis", "mahalanobispp", "rmds", "gradnorm"),
)
CLIPS, SCALES, DROPS = (90, 95, 96, 97, 98, 99), (50, 60, 65, 70, 80, 90), (0.0, 0.02, 0.05, 0.1, 0.3, 0.9)
SHAPED = ("ash_b(90)", "ash_s(90)", "scale(85)", "lts(95)", "dice(0.9)", "vra(60)", "react(95)", "energy", "gradnorm")
GEOMETRY = ("fdbd", "nci", "she")
DISTANCE = ("mahalanobispp", "knn(5, 2000)", "vim", "nnguide")
SPLITS = 4

PAGE = """# The default detector

What `oodles fit`, `ood.detect` and the demo use when no detector is named: `{default}`, which joins
{members}.
This page is written by `python tools/write_default_study.py DATA`; the networks are in `tools/study_networks.py`:

{networks}

All figures are averages of FPR95 over the network's four OOD sets (SVHN, Textures, Places365, Places crops; CIFAR-10 in
place of the one that is ID), in percent, lower is better; the column AUROC is the average over networks.

## Against single detectors at their published settings

{table}

{verdict}

## Trio: three mild stages in a row

`{trio}`: activations are cut off at a high percentile of ID activations, each input is scaled by how little of its sum
lies in its largest activations, the weights that contribute least on ID data are dropped, and the energy of what is left is
the score. The setting comes from an earlier trial on the two DenseNets here, another small network and three ImageNet
networks, and was kept as it was.

{ablation}

![FPR95 as each setting moves](images/default-sensitivity.png)

*Average FPR95 on each network as one setting moves and the others stay. The dashed line is Trio's.*

{order} What the clipping percentile is taken of:

{clipping}

It gains {gain} over energy. Whether something seen on ID rows alone foretells the gain, as Spearman's correlation over the
{count_networks} networks (at this count chance alone exceeds 0.7 one time in twenty, and six were tried):

{foretold}

## {name}: detectors of different kinds, joined

Trio still loses badly to detectors of another kind on some networks, so several are joined: each member's score becomes its
rank among ID rows kept apart from the fit, and the logarithms of the ranks are averaged (Fisher's way to join p-values).

{joined}

How the members were chosen: of all {set_count} sets made of Trio, one other shaped or plain logit score ({shaped}), one from
the geometry of the head ({geometry}) and one or two distances to training rows ({distance}), the best over all networks but
one, tried on that one:

{crossed_sets}

{sets_verdict} That the
sets have this shape was decided after trying some thousands of sets of one to five members on the same networks, so the gain
over Trio is surer than its size. The first choice had no `knn`; the last two networks were made to test it when all else
was settled, and there it failed (the line without `knn` above), so `knn` was added. No network is left that had no say. Which rows are kept apart matters as well: over {splits} random splits the chosen set has {split_mean:.1f} on average,
with a standard deviation of {split_spread:.1f}.

## Cross-validation of single chains

The best of {count} candidates on all networks but one, tried on that one:

{crossed}

## What `select` chooses

From held-out ID images and stand-ins made of them alone ({kinds}). The held-out images are among those the ID scores of
the tables come from. Choosing among {count} candidates took {search:.0%} of the time it takes to extract the stand-ins
(on cifar10, both measured in this run).

{chosen}

{select_verdict}

How well each kind of stand-in ranks the candidates: Spearman's correlation between AUROC against the stand-ins and minus
FPR95 on the real sets, over the candidates.

{agreement}

The rule, the mean of the mean rank and the worst rank over the kinds, was chosen after looking at what it and others (mean
AUROC, mean FPR95, mean rank, median rank, least AUROC, worst rank, one or some kinds alone) pick on these networks. So was
that the default stays where fewer than half of the resamples agree on another.
"""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--store", type=Path, default=Path("oodles-store"), help="where features are kept")
    arguments = parser.parse_args()
    networks = {name: prepare(name, arguments.data, arguments.store) for name in NETWORKS}
    default, trio = default_detector(), Trio().spec
    assert isinstance(default, Jury)
    clip, scale, drop, _ = trio.split("+")
    grid = [part.spec for part in map(parse, candidate_list(networks["cifar10"].train))]
    stages = {
        "all four": trio,
        "no clipping": f"{scale}+{drop}",
        "no scaling": f"{clip}+{drop}",
        "no sparsifying": f"{clip}+{scale}",
        "largest logit instead of energy": f"{clip}+{scale}+{drop}+max_logit",
        "clipping alone": clip,
        "scaling alone": scale,
        "sparsifying alone": drop,
        "energy alone": "energy",
    }
    swapped = f"{scale}+{clip}+{drop}"
    moved = {
        "clipped at the percentile": {p: f"react({p})+{scale}+{drop}" for p in CLIPS},
        "scaled at the percentile": {p: f"{clip}+scale({p})+{drop}" for p in SCALES},
        "weights dropped": {p: f"{clip}+{scale}+dice({p})" for p in DROPS},
    }
    per_unit = {f"of each unit's, {p}": f"react({p}, per='unit')+{scale}+{drop}" for p in (95, 97, 99)}
    joined = joins(default)
    texts = [
        *(*PUBLISHED, *stages.values(), swapped, *per_unit.values(), *joined.values()),
        *(text for line in moved.values() for text in line.values()),
        *grid,
    ]
    specs = list(dict.fromkeys(parse(text).spec for text in texts))
    fpr95, auroc = ({name: {} for name in networks} for _ in range(2))
    for name, network in networks.items():
        print(f"{name}: {len(specs)} detectors")
        for spec, (first, second) in zip(specs, scores(network, specs), strict=True):
            fpr95[name][spec], auroc[name][spec] = first, second
        for p in (95, 97, 99):  # of positive activations: another percentile of all of them, on each network its own
            share = float((network.train.embedding > 0).double().mean())
            text = f"react({100 - (100 - p) * share:.5f})+{scale}+{drop}"
            fpr95[name][f"positive {p}"], auroc[name][f"positive {p}"] = scores(network, [text])[0]
    choices, taken = {}, {}
    for name, network in networks.items():
        start = time.perf_counter()
        choices[name] = select(train=network.train, held_out=network.held_out, outliers=network.outliers)
        taken[name] = time.perf_counter() - start
    draw(moved, fpr95, trio)
    sets = set_scores(networks)
    crossed_sets, chosen_sets = crossed_sets_of(sets, fpr95)
    splits = [
        np.mean(
            [
                joined_fpr95(evidence_of(network, default.detectors, seed), default.detectors)
                for network in networks.values()
            ]
        )
        for seed in range(SPLITS)
    ]
    page = PAGE.format(
        default=default.spec,
        name=type(default).__name__,
        members=", ".join(f"`{member}`" for member in default.detectors),
        networks=described(networks),
        table=table([*PUBLISHED, trio, default.spec], fpr95, auroc),
        verdict=verdict(fpr95, trio, default.spec),
        trio=trio,
        ablation=table(list(stages.values()), fpr95, auroc, list(stages)),
        order=order(fpr95, trio, parse(swapped).spec),
        clipping=clipping(fpr95, auroc, trio, per_unit),
        gain=gain(fpr95, trio),
        count_networks=len(networks),
        foretold=foretold(networks, fpr95, trio),
        joined=table(list(joined.values()), fpr95, auroc, list(joined)),
        set_count=len(sets),
        shaped=", ".join(SHAPED),
        geometry=", ".join(GEOMETRY),
        distance=", ".join(DISTANCE),
        crossed_sets=crossed_sets,
        sets_verdict=sets_verdict(chosen_sets, fpr95),
        splits=SPLITS,
        split_mean=np.mean(splits),
        split_spread=np.std(splits),
        count=len(grid),
        crossed=crossed(grid, fpr95, default.spec),
        kinds=", ".join([NOISE, *KINDS]).replace("_", " "),
        search=taken["cifar10"] / stand_in_time(arguments.data, arguments.store),
        chosen=chosen(choices, fpr95, default.spec),
        select_verdict=select_verdict(choices, fpr95, default.spec),
        agreement=agreement(choices, fpr95),
    )
    (DOCS / "default-detector.md").write_text(page)
    print(f"written: {DOCS / 'default-detector.md'}")


def scores(network: Network, specs: Sequence[str]) -> list[tuple[float, float]]:
    """Average FPR95 and AUROC in percent of each detector."""
    detectors: list[Detector] = [parse(spec) for spec in specs]
    fit_together(detectors, network.train)
    found = []
    for detector in detectors:
        inside = detector.score(network.test)
        rows = [evaluate(inside, detector.score(part)) for part in network.ood.values()]
        found.append((100 * np.mean([row.fpr95 for row in rows]), 100 * np.mean([row.auroc for row in rows])))
    return found


def stand_in_time(data: Path, store: Path) -> float:
    """Seconds to make and extract all stand-ins of cifar10, measured on one kind and the held-out images."""
    from study_networks import stand_in_images

    from oodles.extraction import extract

    part = NETWORKS["cifar10"](data, store)
    start = time.perf_counter()
    made = stand_in_images(part.sets["test"], part.transform)
    making = time.perf_counter() - start
    start = time.perf_counter()
    extract(part.model, list(torch.split(made[NOISE], 250)), labels=False, progress=False)
    return making + len(made) * (time.perf_counter() - start)


# The page's parts -------------------------------------------------------------------------------


def described(networks: dict[str, Network]) -> str:
    """A line a network."""
    lines = ["| network | what it is | units | classes | rows to fit on | accuracy |", "|---|---|---|---|---|---|"]
    what = {
        "cifar10": "DenseNet-101 of the DICE authors, CIFAR-10",
        "cifar100": "DenseNet-101 of the DICE authors, CIFAR-100",
        "small": "the shipped cifar10-small",
        "short": "its architecture after 4 epochs on 10,000 images",
        "digits": "its architecture, taught 4,000 SVHN digits",
        "lite0": "EfficientNet-Lite0 of ImageNet, frozen, with a head for CIFAR-10",
        "lite0-100": "the same with a head for CIFAR-100",
        "lite1-digits": "EfficientNet-Lite1, frozen, with a head for SVHN digits",
        "lite2-textures": "EfficientNet-Lite2, frozen, with a head for ten textures",
    }
    for name, network in networks.items():
        right = float((network.test.logits.argmax(dim=1) == network.test.labels).double().mean())
        sizes = f"{network.train.width} | {network.train.classes} | {len(network.train):,}"
        lines.append(f"| {name} | {what[name]} | {sizes} | {right:.1%} |")
    return "\n".join(lines)


def average(values: dict[str, dict[str, float]], spec: str) -> float:
    """The mean over networks."""
    return float(np.mean([part[spec] for part in values.values()]))


def table(specs: Sequence[str], fpr95: dict, auroc: dict, names: Sequence[str] | None = None) -> str:
    """A line a detector, a column a network, and the averages."""
    lines = [f"| | {' | '.join(fpr95)} | average | AUROC |", "|---|" + "---|" * (len(fpr95) + 2)]
    for name, text in zip(names or specs, specs, strict=True):
        spec = text if text in next(iter(fpr95.values())) else parse(text).spec
        cells = " | ".join(f"{fpr95[network][spec]:.1f}" for network in fpr95)
        lines.append(f"| {name} | {cells} | {average(fpr95, spec):.1f} | {average(auroc, spec):.1f} |")
    return "\n".join(lines)


def verdict(fpr95: dict, trio: str, default: str) -> str:
    """How far below energy and below the best single detector, and where it loses."""
    singles = {text: average(fpr95, parse(text).spec) for text in PUBLISHED}
    best = min(singles, key=lambda text: singles[text])
    mine = average(fpr95, default)
    lines = [
        f"The default's average is {mine:.1f}: {singles['energy'] - mine:.1f} points below energy, "
        f"{singles[best] - mine:.1f} below the best single detector, {best}; Trio's is {average(fpr95, trio):.1f}."
    ]
    first = list(fpr95)[:3]
    old = {text: np.mean([fpr95[name][parse(text).spec] for name in first]) for text in PUBLISHED}
    lines.append(
        f"On {', '.join(first)} alone it has {np.mean([fpr95[name][default] for name in first]):.1f}, energy "
        f"{old['energy']:.1f}, and the best single one {min(old.values()):.1f} ({min(old, key=lambda text: old[text])})."
    )
    lost = [
        f"{name} ({min(better, key=lambda text: fpr95[name][parse(text).spec])} "
        f"{min(fpr95[name][parse(text).spec] for text in better):.1f})"
        for name in fpr95
        if (better := [text for text in (*PUBLISHED, trio) if fpr95[name][parse(text).spec] < fpr95[name][default]])
    ]
    lines.append(f"Something single is better on {', '.join(lost)}." if lost else "Nothing single is better anywhere.")
    return " ".join(lines)


def order(fpr95: dict, trio: str, swapped: str) -> str:
    """Clip then scale, and the other way round."""
    return f"Clip then scale has {average(fpr95, trio):.1f} on average, scale then clip {average(fpr95, swapped):.1f}."


def clipping(fpr95: dict, auroc: dict, trio: str, per_unit: dict[str, str]) -> str:
    """All activations, the positive ones, each unit's own."""
    rows = {"of all, 97": trio, **{f"of the positive ones, {p}": f"positive {p}" for p in (95, 97, 99)}, **per_unit}
    return table(list(rows.values()), fpr95, auroc, list(rows))


def gain(fpr95: dict, trio: str) -> str:
    """Trio over energy on each network."""
    return ", ".join(f"{fpr95[name]['energy'] - fpr95[name][trio]:+.1f} ({name})" for name in fpr95)


def foretold(networks: dict[str, Network], fpr95: dict, trio: str) -> str:
    """Statistics of ID rows beside the gain over energy."""
    seen: dict[str, list[float]] = {}
    for network in networks.values():
        rows = network.test
        ratio = top_ratio(rows.embedding.float(), 65)[:, 0]
        values = {
            "accuracy": float((rows.logits.argmax(dim=1) == rows.labels).double().mean()),
            "share of activations that are 0": float((rows.embedding == 0).double().mean()),
            "mean of SCALE's ratio": float(ratio.mean()),
            "spread of the ratio, over its mean": float(ratio.std() / ratio.mean()),
            "correlation of the ratio with energy": float(
                torch.corrcoef(torch.stack([ratio, energy(rows.logits.float())]))[0, 1]
            ),
            "largest activation over the mean one": float(rows.embedding.float().max() / rows.embedding.float().mean()),
        }
        for name, value in values.items():
            seen.setdefault(name, []).append(value)
    gains = [part["energy"] - part[trio] for part in fpr95.values()]
    lines = [f"| | {' | '.join(networks)} | rho |", "|---|" + "---|" * (len(networks) + 1)]
    for name, values in seen.items():
        cells = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {name} | {cells} | {spearmanr(values, gains).statistic:+.2f} |")
    return "\n".join(lines)


def joins(default: Jury) -> dict[str, str]:
    """The default, joined in other ways, and without each member."""
    rows = {"all five, logarithms": default.spec}
    for way in ("mean", "min"):
        rows[f"all five, {way}"] = f"combination({default.detectors}, '{way}')"
    for member in default.detectors:
        rest = tuple(other for other in default.detectors if other != member)
        rows[f"without {member.removesuffix('+energy')}"] = f"combination({rest}, 'fisher')"
    return rows | {f"{member.removesuffix('+energy')} alone": member for member in default.detectors}


def predicted(rows: Features) -> Features:
    """With the predicted classes for labels, as Jury has them."""
    return Features(rows.embedding, logits=rows.logits, labels=rows.logits.argmax(dim=1), head=rows.head)


def evidence_of(network: Network, specs: Iterable[str], seed: int) -> dict[str, tuple[Tensor, list[Tensor]]]:
    """Each detector's evidence on the test rows and on every OOD set, ranked on a fifth of the training rows."""
    if seed:
        order = torch.randperm(len(network.train), generator=torch.Generator().manual_seed(seed))
        train, held = network.train[order[len(order) // 5 :]], network.train[order[: len(order) // 5]]
    else:
        train, held = keep_apart(network.train)
    detectors = {spec: parse(spec) for spec in specs}
    fit_together(list(detectors.values()), predicted(train))
    found = {}
    for spec, detector in detectors.items():
        marks = knots(detector.score(held).double())
        inside, *outside = (
            evidence(rank(detector.score(part).double(), marks)) for part in (network.test, *network.ood.values())
        )
        found[spec] = inside, outside
    return found


def joined_fpr95(known: dict[str, tuple[Tensor, list[Tensor]]], members: Iterable[str]) -> float:
    """Average FPR95 in percent of the members' evidence together."""
    parts = [known[member] for member in members]
    inside = sum(part[0] for part in parts)
    outside = [sum(each) for each in zip(*(part[1] for part in parts), strict=True)]
    return 100 * float(np.mean([evaluate(inside, part).fpr95 for part in outside]))


def set_scores(networks: dict[str, Network]) -> dict[tuple[str, ...], dict[str, float]]:
    """FPR95 of each set on each network."""
    far = [*itertools.combinations(DISTANCE, 1), *itertools.combinations(DISTANCE, 2)]
    sets = [("trio", shaped, geometry, *some) for shaped, geometry, some in itertools.product(SHAPED, GEOMETRY, far)]
    found: dict[tuple[str, ...], dict[str, float]] = {members: {} for members in sets}
    for name, network in networks.items():
        known = evidence_of(network, ("trio", *SHAPED, *GEOMETRY, *DISTANCE), 0)
        for members in sets:
            found[members][name] = joined_fpr95(known, members)
    return found


def crossed_sets_of(sets: dict[tuple[str, ...], dict[str, float]], fpr95: dict) -> tuple[str, dict[str, float]]:
    """Leave one network out, over sets of members."""
    lines = ["| left out | chosen on the others | its FPR95 | Trio's |", "|---|---|---|---|"]
    picked = {}
    for name in fpr95:
        best = min(sets, key=lambda members: np.mean([value for key, value in sets[members].items() if key != name]))
        picked[name] = sets[best][name]
        lines.append(f"| {name} | {', '.join(best)} | {picked[name]:.1f} | {fpr95[name][Trio().spec]:.1f} |")
    whole = [float(np.mean(list(values.values()))) for values in sets.values()]
    lines.append(
        f"| all sets, average over networks | | {np.mean(whole):.1f} ({min(whole):.1f} to {max(whole):.1f}) | |"
    )
    return "\n".join(lines), picked


def sets_verdict(picked: dict[str, float], fpr95: dict) -> str:
    """What cross-validation makes of joining."""
    singles = min(average(fpr95, parse(text).spec) for text in PUBLISHED)
    return (
        f"Chosen this way the average is {np.mean(list(picked.values())):.1f}, where the best single detector in hindsight has "
        f"{singles:.1f} and energy {average(fpr95, 'energy'):.1f}."
    )


def crossed(grid: list[str], fpr95: dict, default: str) -> str:
    """Leave one network out, over single candidates."""
    lines = [
        "| left out | chosen on the others | its FPR95 | the default's | the best in hindsight |",
        "|---|---|---|---|---|",
    ]
    for name in fpr95:
        others = [part for key, part in fpr95.items() if key != name]
        pick = min(grid, key=lambda spec: np.mean([part[spec] for part in others]))
        best = min(grid, key=lambda spec: fpr95[name][spec])
        lines.append(
            f"| {name} | {pick} | {fpr95[name][pick]:.1f} | {fpr95[name][default]:.1f} | {best} {fpr95[name][best]:.1f} |"
        )
    return "\n".join(lines)


def chosen(choices: dict[str, Choice], fpr95: dict, default: str) -> str:
    """What select took, beside the fixed choices."""
    fixed = {"default": default, "DICE 0.9": "dice(0.9)+energy", "energy": "energy", "MSP": "msp"}
    lines = [f"| network | chosen | sure | FPR95 | {' | '.join(fixed)} | best in hindsight |", "|---|" + "---|" * 8]
    for name, choice in choices.items():
        spec = choice.detector.spec
        candidates = [row.spec for row in choice.candidates]
        best = min(candidates, key=lambda other: fpr95[name][other])
        cells = " | ".join(f"{fpr95[name][other]:.1f}" for other in fixed.values())
        lines.append(
            f"| {name} | {spec} | {choice.certainty:.0%} | {fpr95[name][spec]:.1f} | {cells} | {best} {fpr95[name][best]:.1f} |"
        )
    return "\n".join(lines)


def select_verdict(choices: dict[str, Choice], fpr95: dict, default: str) -> str:
    """Whether choosing is worth it."""
    mine = np.mean([fpr95[name][choice.detector.spec] for name, choice in choices.items()])
    usual = average(fpr95, default)
    word = "no worse than" if mine <= usual + 0.05 else "worse than"
    return (
        f"On average {mine:.1f} for {usual:.1f} of the default: {word} not choosing. What stands in the way of more is that "
        "stand-ins rank detectors otherwise than real outliers do:"
    )


def agreement(choices: dict[str, Choice], fpr95: dict) -> str:
    """Spearman's correlation of the candidates' order on each kind with that on the real sets."""
    kinds = list(next(iter(choices.values())).candidates[0].auroc)
    lines = [
        f"| | {' | '.join(kind.replace('_', ' ') for kind in kinds)} | worth |",
        "|---|" + "---|" * (len(kinds) + 1),
    ]
    for name, choice in choices.items():
        real = [-fpr95[name][row.spec] for row in choice.candidates]
        seen = [
            *([row.auroc[kind] for row in choice.candidates] for kind in kinds),
            [row.worth for row in choice.candidates],
        ]
        lines.append(f"| {name} | " + " | ".join(f"{spearmanr(values, real).statistic:.2f}" for values in seen) + " |")
    return "\n".join(lines)


def draw(moved: dict[str, dict[float, str]], fpr95: dict, trio: str) -> None:
    """One panel a setting."""
    figure, axes = plt.subplots(1, len(moved), figsize=(12, 4), sharey=True, layout="constrained")
    usual = [float(part.split("(")[1].rstrip(")")) for part in trio.split("+")[:3]]
    for axis, (label, line), mark in zip(axes, moved.items(), usual, strict=True):
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


if __name__ == "__main__":
    main()
