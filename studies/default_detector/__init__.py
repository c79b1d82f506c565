"""Write ``docs/default-detector.md``: the candidates for the default detector on many networks.

The data must include ``cifar10-jpeg.zip`` and ``networks/*.npz``; ``networks.py`` defines the networks.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from oodles.detectors import DefaultEnsemble, RankEnsemble, fit_together, parse
from oodles.detectors.default import CHAIN, MEMBERS
from oodles.detectors.ensemble import LOG_LIMIT
from oodles.detectors.support import CHECKS
from oodles.features import Features
from oodles.functional.normal import log_ndtr
from oodles.metrics import evaluate
from oodles.selection.detector import Choice, select
from studies import DATA, STORE
from studies.default_detector import tables
from studies.default_detector.networks import GROUPS, NINE, SELECTED, SIX, Network, held_out_and_outliers, prepare
from studies.default_detector.tables import (
    CHOSEN,
    EARLIER,
    EARLIER_CHECKED,
    EARLIER_SIGNED,
    FEWER,
    MAHALANOBIS,
    MORE,
)
from studies.pages import write_page

VIM, KNN, PLUS_PLUS = MEMBERS[2:]
_EARLIER = (CHAIN, "scale(85)+energy", "she", "pnml", KNN, VIM)
SETS: dict[str, tuple[str, ...]] = {
    EARLIER: _EARLIER,
    EARLIER_CHECKED: (*_EARLIER, *CHECKS),
    EARLIER_SIGNED: ("vra(60)+energy", "nci", "mahalanobis", KNN),
    FEWER[0]: (CHAIN, CHAIN, VIM, *CHECKS),
    FEWER[1]: (CHAIN, CHAIN, VIM, KNN, *CHECKS),
    MAHALANOBIS: (CHAIN, CHAIN, VIM, KNN, "mahalanobis", *CHECKS),
    CHOSEN: (*MEMBERS, *CHECKS),
    MORE[0]: (CHAIN, *MEMBERS, *CHECKS),
    MORE[1]: ("scale(85)+energy", *MEMBERS, *CHECKS),
}
"""The candidates; all but the earlier defaults have the checks."""
SPLITS = 4
SINGLE = (
    *("msp", "energy", "gen", "react(90)", "react(95)", "vra(60)", "dice(0.9)", "ash_s(90)", "scale(85)"),
    *("react(97)+scale(65)+dice(0.05)", "vim", "knn", "mahalanobis", "mahalanobis_pp", "pnml", "she", "nci", "fdbd"),
    *("cadref", "gradnorm", "mme", "default"),
)
_CLIP, _SCALE, _DROP, _ = CHAIN.split("+")
STAGES = {
    "clip, scale, sparsify, energy": CHAIN,
    "without clipping": f"{_SCALE}+{_DROP}",
    "without scaling": f"{_CLIP}+{_DROP}",
    "without sparsifying": f"{_CLIP}+{_SCALE}",
    "energy alone": "energy",
}
FAR = ("cifar10", "lite0", "lite0_imagenet", "vit", "lite0-projected", "table", "files")


def main(data: Path = DATA, store: Path = STORE) -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # heads that are fitted here are then the same on every run, as the store requires
    networks = {name: prepare(name, data, store) for group in GROUPS.values() for name in group}
    sets: dict[str, dict[str, list[float]]] = {}
    fpr95: tables.Figures = {}
    auroc: tables.Figures = {}
    for name, network in networks.items():
        print(name, flush=True)
        splits = [set_fpr95(network, seed) for seed in range(SPLITS)]
        sets[name] = {each: [part[each] for part in splits] for each in SETS}
        fpr95[name], auroc[name] = averages(network, [*SINGLE, *(STAGES.values() if name in (*NINE, *SIX) else ())])
    far = {name: far_away(networks[name]) for name in FAR}
    choices = {name: chosen(networks[name], *held_out_and_outliers(name, data, store)) for name in SELECTED}
    tables.draw(sets)
    write_page(
        "default-detector",
        splits=SPLITS,
        sets=tables.sets(sets),
        **tables.set_values(sets, fpr95),
        unseen=tables.unseen(sets, fpr95),
        single=tables.single(SINGLE, fpr95, auroc),
        **tables.single_values(SINGLE, fpr95),
        each=tables.each(SINGLE, fpr95),
        far=tables.far(far),
        stages=tables.stages(STAGES, fpr95),
        select=tables.select(choices),
        select_verdict=tables.select_verdict(choices),
        networks=tables.described(networks),
    )


# Measurements -----------------------------------------------------------------------------------


def set_fpr95(network: Network, seed: int) -> dict[str, float]:
    """FPR95 of every set, with ranks computed on a random fifth of the training rows."""
    members = dict.fromkeys(member for members in SETS.values() for member in members if member not in CHECKS)
    train, held_out = network.train.split(0.2, seed=seed)
    # the default learns from the predicted classes
    train = Features(train.embedding, logits=train.logits, labels=train.logits.argmax(dim=1), head=train.head)
    ensemble = RankEnsemble(detectors=list(members), reduction="fisher", holdout=0, checks=CHECKS).fit(train)
    ensemble.tune(held_out)
    inside, *outside = (deviations(ensemble, part) for part in (network.test, *network.ood.values()))
    return {
        name: average_fpr95(combined(inside, some), [combined(part, some) for part in outside])
        for name, some in SETS.items()
    }


def deviations(ensemble: RankEnsemble, rows: Features) -> dict[str, Tensor]:
    """How far each member's scores are from the ID median, in standard deviations."""
    parts = [ensemble.deviations(ensemble.member_scores(part.embedding, part.logits)) for part in rows.batches()]
    specs = [member.spec for member in ensemble.scoring_members()]
    return dict(zip(specs, torch.cat(parts, dim=1), strict=True))


def combined(found: Mapping[str, Tensor], some: Sequence[str]) -> Tensor:
    """The score of the ensemble of ``some`` detectors; those in CHECKS are its checks."""
    ranks = torch.stack([log_ndtr(found[spec]) for spec in some if spec not in CHECKS])
    below = [(log_ndtr(found[spec]) - LOG_LIMIT).clamp(max=0) for spec in some if spec in CHECKS]
    return ranks.mean(dim=0) + sum(below, torch.zeros(()))


def averages(network: Network, texts: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """FPR95 and AUROC in percent of each detector, averaged over the OOD sets."""
    detectors = {text: parse(text) for text in dict.fromkeys(texts)}
    fit_together(list(detectors.values()), network.train)
    fpr95, auroc = {}, {}
    for text, detector in detectors.items():
        id_scores = detector.score(network.test)
        rows = [evaluate(id_scores, detector.score(part)) for part in network.ood.values()]
        fpr95[text] = 100 * sum(row.fpr95 for row in rows) / len(rows)
        auroc[text] = 100 * sum(row.auroc for row in rows) / len(rows)
    return fpr95, auroc


def average_fpr95(id_scores: Tensor, ood_scores: Iterable[Tensor]) -> float:
    """FPR95 in percent, averaged over the OOD sets."""
    found = [evaluate(id_scores, scores).fpr95 for scores in ood_scores]
    return 100 * sum(found) / len(found)


def far_away(network: Network) -> dict[str, tuple[float, float]]:
    """The share accepted of changed ID rows, without and with the checks; half of the test rows set the threshold."""
    generator = torch.Generator().manual_seed(0)
    changed_rows, calibration = network.test.split(0.5)
    rows = changed_rows.embedding.float()
    spread = network.train.embedding.float().std(dim=0)
    varying = spread.nonzero()[:, 0]
    units = varying[torch.randint(len(varying), (len(rows),), generator=generator)]
    moved = rows.clone()
    moved[torch.arange(len(rows)), units] += 20 * spread[units]
    changed = {
        "unchanged": rows,
        "rounded to bfloat16": rows.bfloat16().float(),
        "noise of 1 % of each standard deviation": rows + 0.01 * spread * torch.randn(rows.shape, generator=generator),
        **{f"times {factor:g}": factor * rows for factor in (1.1, 1.2, 2, 4, 20)},
        "all units plus 10 standard deviations": rows + 10 * spread,
        "one unit plus 20 standard deviations": moved,
    }
    found: dict[str, list[float]] = {name: [] for name in changed}
    for checks in ((), CHECKS):
        detector = DefaultEnsemble(checks=checks).fit(network.train)
        threshold = torch.quantile(detector.score(calibration), 0.05)
        for name, embedding in changed.items():
            accepted = detector.score(Features(embedding, head=network.test.head)) >= threshold
            found[name].append(100 * float(accepted.double().mean()))
    return {name: (without, having) for name, (without, having) in found.items()}


def chosen(network: Network, held_out: Features, outliers: dict[str, Features]) -> tuple[Choice, float, float]:
    """What ``select`` chooses, its FPR95 and that of the default."""
    choice = select(train=network.train, held_out=held_out, outliers=outliers)
    fpr95, _ = averages(network, [choice.detector.spec, "default"])
    return choice, fpr95[choice.detector.spec], fpr95["default"]
