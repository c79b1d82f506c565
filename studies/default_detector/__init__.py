"""Write ``docs/default-detector.md``: every candidate for the default detector on many networks.

The data must include ``cifar10-jpeg.zip``; ``networks.py`` defines the networks. Every candidate is fitted and scored
on each of them.
"""

import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodles.detectors import DefaultEnsemble, Detector, ReActScaleDICE, combine, default_detector, fit_together, parse
from oodles.detectors.ensemble import centre_and_spread
from oodles.features import Features
from oodles.metrics import evaluate
from oodles.network.extraction import extract
from oodles.selection.detector import candidate_list, select
from oodles.selection.outliers import KINDS, NOISE
from studies import DATA, STORE
from studies.default_detector.networks import LATER, NETWORKS, POSITIVE, SIGNED, Network, outlier_images, prepare
from studies.default_detector.tables import (
    PERCENTILES,
    PUBLISHED,
    Figures,
    agreement,
    chosen,
    clipping,
    crossed,
    crossed_sets_of,
    described,
    draw,
    gain,
    order,
    predictors,
    select_verdict,
    sets_verdict,
    shortfalls,
    table,
    verdict,
)
from studies.pages import write_page

Floats = npt.NDArray[np.float64]
CLIPS, SCALES, DROPS = (90, 95, 96, 97, 98, 99), (50, 60, 65, 70, 80, 90), (0.0, 0.02, 0.05, 0.1, 0.3, 0.9)
SHAPED = (
    *("ash_b(90)", "ash_s(90)", "scale(85)", "lts(95)", "dice(0.9)", "vra(60)", "react(95)", "energy", "gradnorm"),
    *("cadref", "optfs"),
)
GEOMETRY = ("fdbd", "nci", "she")
DISTANCE = ("mahalanobis_pp", "knn(5, 2000)", "vim", "nnguide", "pnml", "residual")
FOR_SIGNED = (
    *("react_scale_dice", "ash_b(90)", "vra(60)", "energy", "fdbd", "nci", "nnguide", "mahalanobis", "mahalanobis_pp"),
    *("knn(5, 2000)", "vim", "residual", "pnml"),
)
SPLITS = 4


def main(data: Path = DATA, store: Path = STORE) -> None:
    """Measure and write."""
    networks, signed = ({name: prepare(name, data, store) for name in names} for names in (POSITIVE, SIGNED))
    default, chain = default_detector(), ReActScaleDICE().spec
    assert isinstance(default, DefaultEnsemble)
    clip, scale, drop, _ = chain.split("+")
    grid = [part.spec for part in map(parse, candidate_list(networks["cifar10"].train))]
    stages = {
        "all four": chain,
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
    varied: dict[str, dict[float, str]] = {
        "clipped at the percentile": {p: f"react({p})+{scale}+{drop}" for p in CLIPS},
        "scaled at the percentile": {p: f"{clip}+scale({p})+{drop}" for p in SCALES},
        "weights dropped": {p: f"{clip}+{scale}+dice({p})" for p in DROPS},
    }
    per_unit = {f"of each unit, {p}": f"react({p}, per='unit')+{scale}+{drop}" for p in PERCENTILES}
    ensembles = variants(default)
    texts = [
        *(*PUBLISHED, *stages.values(), swapped, *per_unit.values(), *ensembles.values()),
        *(text for line in varied.values() for text in line.values()),
        *grid,
    ]
    specs = list(dict.fromkeys(parse(text).spec for text in texts))
    fpr95, auroc = measured(networks, specs)
    for name, network in networks.items():
        for p in PERCENTILES:  # a percentile of the positive activations is another percentile of all activations
            share = float((network.train.embedding > 0).double().mean())
            text = f"react({100 - (100 - p) * share:.5f})+{scale}+{drop}"
            fpr95[name][f"positive {p}"], auroc[name][f"positive {p}"] = averages(network, [text])[0]
    singles = list(dict.fromkeys(parse(text).spec for text in (*PUBLISHED, chain, default.spec)))
    signed_fpr95, signed_auroc = measured(signed, singles)
    choices, seconds = {}, {}
    for name, network in networks.items():
        start = time.perf_counter()
        choices[name] = select(train=network.train, held_out=network.held_out, outliers=network.outliers)
        seconds[name] = time.perf_counter() - start
    draw(varied, fpr95, chain)
    sets, signed_sets = set_scores(networks, structured_sets()), set_scores(signed, some_of(FOR_SIGNED))
    crossed_sets, chosen_sets = crossed_sets_of(sets)
    crossed_signed, chosen_signed = crossed_sets_of(signed_sets)
    splits = [split_score(networks.values(), default.detectors, seed) for seed in range(SPLITS)]
    later = {name: prepare(name, data, store) for name in LATER}
    later_fpr95, later_auroc = measured(later, singles)
    write_page(
        "default-detector",
        default=default.spec,
        name=type(default).__name__,
        members=", ".join(f"`{member}`" for member in default.detectors),
        signed_members=", ".join(f"`{member}`" for member in default.signed),
        networks=described(networks | signed | later),
        table=table([*PUBLISHED, chain, default.spec], fpr95, auroc),
        verdict=verdict(fpr95, chain, default.spec),
        chain=chain,
        ablation=table(list(stages.values()), fpr95, auroc, list(stages)),
        order=order(fpr95, chain, parse(swapped).spec),
        clipping=clipping(fpr95, auroc, chain, per_unit),
        gain=gain(fpr95, chain),
        count_networks=len(networks),
        predictors=predictors(networks, fpr95, chain),
        combined=table(list(ensembles.values()), fpr95, auroc, list(ensembles)),
        set_count=len(sets),
        shaped=", ".join(SHAPED),
        geometry=", ".join(GEOMETRY),
        distance=", ".join(DISTANCE),
        crossed_sets=crossed_sets,
        sets_verdict=sets_verdict(chosen_sets, fpr95, default.spec),
        signed_table=table(singles, signed_fpr95, signed_auroc),
        signed_shortfalls=shortfalls(signed_fpr95, default.spec),
        signed_count=len(signed_sets),
        for_signed=", ".join(FOR_SIGNED),
        crossed_signed=crossed_signed,
        signed_verdict=sets_verdict(chosen_signed, signed_fpr95, default.spec),
        later_table=table(singles, later_fpr95, later_auroc),
        later_shortfalls=shortfalls(later_fpr95, default.spec),
        everything=verdict(fpr95 | signed_fpr95, chain, default.spec),
        splits=SPLITS,
        split_mean=f"{np.mean(splits):.1f}",
        split_spread=f"{np.std(splits):.1f}",
        count=len(grid),
        crossed=crossed(grid, fpr95, default.spec),
        kinds=", ".join([NOISE, *KINDS]).replace("_", " "),
        search=f"{seconds['cifar10'] / extraction_time(data, store):.0%}",
        chosen=chosen(choices, fpr95, default.spec),
        select_verdict=select_verdict(choices, fpr95, default.spec),
        agreement=agreement(choices, fpr95),
    )


# Measurements -----------------------------------------------------------------------------------


def averages(network: Network, specs: Sequence[str]) -> list[tuple[float, float]]:
    """FPR95 and AUROC in percent of each detector, averaged over the OOD sets."""
    detectors: list[Detector] = [parse(spec) for spec in specs]
    fit_together(detectors, network.train)
    found = []
    for detector in detectors:
        id_scores = detector.score(network.test)
        rows = [evaluate(id_scores, detector.score(part)) for part in network.ood.values()]
        found.append((100 * fmean(row.fpr95 for row in rows), 100 * fmean(row.auroc for row in rows)))
    return found


def average_fpr95(id_scores: Tensor, ood_scores: Iterable[Tensor]) -> float:
    """FPR95 in percent, averaged over the OOD sets."""
    return 100 * float(np.mean([evaluate(id_scores, scores).fpr95 for scores in ood_scores]))


def extraction_time(data: Path, store: Path) -> float:
    """Seconds to make and extract all synthetic outliers of cifar10, measured on one kind and the held-out images."""
    part = NETWORKS["cifar10"](data, store)
    start = time.perf_counter()
    made = outlier_images(part.sets["test"], part.transform)
    making = time.perf_counter() - start
    start = time.perf_counter()
    extract(part.model, list(torch.split(made[NOISE], 250)), labels=False, progress=False)
    return making + len(made) * (time.perf_counter() - start)


def split(network: Network, seed: int) -> tuple[Features, Features]:
    """Training rows to fit on, with the predicted classes as labels as in DefaultEnsemble, and held-out rows."""
    train, held_out = network.train.split(0.2, seed=seed)
    labels = train.logits.argmax(dim=1)
    return Features(train.embedding, logits=train.logits, labels=labels, head=train.head), held_out


def split_score(networks: Iterable[Network], members: Sequence[str], seed: int) -> float:
    """FPR95 of an ensemble whose ranks are computed on one random fifth of the rows, averaged over the networks."""
    found = []
    for network in networks:
        train, held_out = split(network, seed)
        ensemble = combine(members, train=train, held_out=held_out, reduction="fisher")
        found.append(average_fpr95(ensemble.score(network.test), map(ensemble.score, network.ood.values())))
    return float(np.mean(found))


def measured(networks: dict[str, Network], specs: Sequence[str]) -> tuple[Figures, Figures]:
    """FPR95 and AUROC of each detector on each network."""
    fpr95: Figures = {}
    auroc: Figures = {}
    for name, network in networks.items():
        print(f"{name}: {len(specs)} detectors")
        found = averages(network, specs)
        fpr95[name] = {spec: first for spec, (first, _) in zip(specs, found, strict=True)}
        auroc[name] = {spec: second for spec, (_, second) in zip(specs, found, strict=True)}
    return fpr95, auroc


def structured_sets() -> list[tuple[str, ...]]:
    """ReActScaleDICE, another logit score, one that knows the head's geometry, and one to three distances."""
    far = [some for count in (1, 2, 3) for some in itertools.combinations(DISTANCE, count)]
    return [
        ("react_scale_dice", shaped, angle, *some) for shaped, angle, some in itertools.product(SHAPED, GEOMETRY, far)
    ]


def some_of(specs: Sequence[str]) -> list[tuple[str, ...]]:
    """All sets of one to five of them."""
    return [some for count in range(1, 6) for some in itertools.combinations(specs, count)]


def set_scores(
    networks: dict[str, Network], sets: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], dict[str, float]]:
    """FPR95 of each set of members on each network; every member is fitted and ranked only once per network."""
    found: dict[tuple[str, ...], dict[str, float]] = {members: {} for members in sets}
    for name, network in networks.items():
        known = log_ranks(network, sorted({member for members in sets for member in members}))
        for members in sets:
            id_scores, *ood_scores = (
                np.mean(part, axis=0) for part in zip(*(known[each] for each in members), strict=True)
            )
            threshold = np.quantile(id_scores, 0.05)
            found[members][name] = 100 * float(np.mean([(scores >= threshold).mean() for scores in ood_scores]))
    return found


def log_ranks(network: Network, specs: Iterable[str]) -> dict[str, list[Floats]]:
    """Each detector's log ranks on the test rows and on every OOD set: what ``fisher`` takes the mean of."""
    train, held_out = split(network, 0)
    detectors = {spec: parse(spec) for spec in specs}
    fit_together(list(detectors.values()), train)
    found = {}
    for spec, detector in detectors.items():
        centre, spread = centre_and_spread(detector.score(held_out).double())
        scores = (detector.score(part).double() for part in (network.test, *network.ood.values()))
        found[spec] = [torch.special.log_ndtr((each - centre) / spread).numpy() for each in scores]
    return found


def variants(default: DefaultEnsemble) -> dict[str, str]:
    """The default, its members combined in other ways, without each member, and each member alone."""
    rows = {"all, fisher": default.spec}
    for reduction in ("mean", "min"):
        rows[f"all, {reduction}"] = f"rank_ensemble({default.detectors}, '{reduction}')"
    for member in default.detectors:
        rest = tuple(other for other in default.detectors if other != member)
        rows[f"without {member.removesuffix('+energy')}"] = f"rank_ensemble({rest}, 'fisher')"
    return rows | {f"{member.removesuffix('+energy')} alone": member for member in default.detectors}
