"""``oodles select-p``."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from oodles.cli.common import notice, open_set
from oodles.cli.options import MAX_OUTLIERS, MAX_SEED, JsonOption, ModelOptions, RunOptions, complete_detector
from oodles.errors import ArgumentError


def select_p(
    images: Annotated[Path, Argument(help="ID training images, to rank the weights.")],
    held_out: Annotated[Path, Option(help="ID images the network was not trained on.")],
    network: ModelOptions,
    given: RunOptions,
    detector: Annotated[
        str, Option(help="A detector with a sparsifier, whose p to choose.", autocompletion=complete_detector)
    ] = "dice",
    fine: Annotated[bool, Option("--fine", help="Try values from 0.01 up, not only the paper's six.")] = False,
    noise: Annotated[int, Option(help="Number of noise images.", min=1, max=MAX_OUTLIERS)] = 1000,
    seed: Annotated[int, Option(help="Seed of the noise.", min=0, max=MAX_SEED)] = 0,
    out: Annotated[Path | None, Option(help="File for a plot of the curve, .png or .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose DICE's sparsity p for your network, from ID images and noise alone.

    As in the paper, the outliers are images whose every pixel is N(0, 1). The p with the largest AUROC is
    chosen; values within one standard error of it are ties, and ties go to the larger p.

    Example: oodles select-p photos/train --held-out photos/val --model mynets:resnet18 --checkpoint r18.pt
    """
    preprocessing = given.transform()
    paths = {"train": images, "test": held_out}
    sets = {name: open_set(path).sample(given.limit) for name, path in paths.items()}

    import numpy as np

    from oodles.bench.sets import extract_sets
    from oodles.detectors import LogitDetector, parse
    from oodles.paper.sweep import PAPER_GRID
    from oodles.plots import check_picture, curves_over_p, save_figure
    from oodles.selection.outliers import NoiseImages
    from oodles.selection.sparsity import FINE_GRID
    from oodles.selection.sparsity import select_p as choose

    chosen = parse(detector)
    if not isinstance(chosen, LogitDetector):
        raise ArgumentError(f"--detector {detector} has no sparsifier, so there is no p to choose")
    chosen.with_p(0.5)
    if out is not None:
        check_picture(out, (each.file(row) for each in sets.values() if each.file for row in range(len(each))))
    loaded = network.load()
    noises = NoiseImages(preprocessing.shape, noise, seed=seed)
    rows = extract_sets(
        loaded,
        {**sets, "noise": noises},
        preprocessing=preprocessing,
        labels=False,
        skip_bad=given.skip_bad,
        tell=notice,
        head=given.head,
        device=given.device,
    )
    grid = FINE_GRID if fine else PAPER_GRID
    found = choose(chosen, train=rows["train"], held_out=rows["test"], outliers=rows["noise"], grid=grid)
    curves = [np.array([100 * getattr(found.curve[each], name) for each in found.curve]) for name in ("auroc", "fpr95")]
    if out is not None:
        labels = "AUROC (%), the criterion", "FPR95 (%)"
        panels = {label: {"outliers": curve} for label, curve in zip(labels, curves, strict=True)}
        save_figure(curves_over_p(list(found.curve), panels, chosen=found.p), out)
    if as_json:
        curve = {str(each): row.as_dict() for each, row in found.curve.items()}
        record = {"p": found.p, "best": found.best, "standard_error": found.standard_error, "curve": curve}
        typer.echo(json.dumps(record))
        return
    for each, auroc, fpr95 in zip(found.curve, *curves, strict=True):
        mark = "  <- chosen" if each == found.p else ""
        typer.echo(f"p={each:<5g} AUROC {auroc:6.2f}  FPR95 {fpr95:6.2f}{mark}")
    notice(found.verdict)
