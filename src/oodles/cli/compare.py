"""Comparing and explaining: ``bench``, ``select-p``, ``analyze``, ``data fetch``, ``data list``."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oodles.cli.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CheckpointOption,
    DetectorOption,
    JsonOption,
    LayerOption,
    MeanOption,
    ModelOption,
    ResizeOption,
    SizeOption,
    SkipOption,
    StdOption,
    app,
    console,
    load_model,
    named_paths,
    notices,
    plain,
    tell_skipped,
    transform,
)
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from torch import nn

    from oodles.bench.datasets import ImageSet
    from oodles.bench.experiment import Tables
    from oodles.bench.suites import Suite

datasets = typer.Typer(no_args_is_help=True, help="Get the paper's datasets from their original sites.")
app.add_typer(datasets, name="data")

DataOption = Annotated[Path, typer.Option(help="Folder with the datasets, each unpacked as its archive is.")]
DeviceOption = Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")]


@app.command()
def bench(
    suite: Annotated[
        str | None, typer.Argument(help="cifar10, cifar100 or imagenet: the paper's sets below --data and its network.")
    ] = None,
    data: DataOption = Path("data"),
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="main, sparsification, selection, sweep, msp, or all; may be given again. Main unless given."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Your classifier, package.module:factory.")] = None,
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="Its weights; given again, mean and deviation over all of them.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="ID training images.")] = None,
    test: Annotated[Path | None, typer.Option(help="ID test images.")] = None,
    ood: Annotated[list[str] | None, typer.Option(help="OOD images as NAME=PATH; may be given again.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Leave an OOD set of the suite out.")] = None,
    detector: DetectorOption = None,
    p: Annotated[float | None, typer.Option(help="Sparsity of the ablations; the suite's unless given.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Put the paper's figures and the differences beside.")] = False,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95 % bootstrap intervals.")] = False,
    store: Annotated[Path, typer.Option(help="Features are kept here, and read instead of computed next time.")] = Path(
        "oodles-store"
    ),
    limit: Annotated[int | None, typer.Option(help="At most so many images of each set, chosen at random.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for rows.json, rows.csv and each table as Markdown and LaTeX.")
    ] = None,
    layer: LayerOption = None,
    size: SizeOption = 224,
    resize: ResizeOption = None,
    mean: MeanOption = IMAGENET_MEAN,
    std: StdOption = IMAGENET_STD,
    device: DeviceOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
    list_suites: Annotated[
        bool, typer.Option("--list", help="Show suites, their sets and where each was found.")
    ] = False,
) -> None:
    """Compare detectors on a suite of the paper or on your own model: FPR95 and AUROC per OOD set.

    The network runs once per image, whatever the number of detectors and tables.

    Examples: oodles bench cifar10 --data DIR --checkpoint densenet101-cifar10.pth.tar --table all --paper

    oodles bench --model mynets:resnet18 --checkpoint r18.pt --train imgs/train --test imgs/test
    --ood sketches=imgs/sketches
    """
    from oodles.bench.experiment import Extraction, Tables, run_tables
    from oodles.bench.report import rows_json
    from oodles.bench.suites import suite as find_suite
    from oodles.bench.tables import TABLES, detectors_of
    from oodles.detectors import detector_list, parse
    from oodles.models.deconf import cosine_layer

    if list_suites:
        _list_suites(data)
        return
    chosen = find_suite(suite) if suite else None
    tables = list(TABLES) if "all" in (table or []) else list(dict.fromkeys(table or ["main"]))
    sparsity = p if p is not None else chosen.p if chosen is not None else 0.9
    parse(f"dice({sparsity})")
    for name in (*tables, *(each for each in table or [] if each != "all")):
        detectors_of(name, (), sparsity)
    if paper and chosen is None:
        raise ArgumentError("--paper compares with the paper's suites; name one, or leave it out")
    if out is not None and out.is_file():
        raise ArgumentError(f"--out {out} is a file; it takes a folder")
    own = [parse(text).spec for text in detector or []]
    sets = _sets(chosen, data, {"train": train, "test": test, **named_paths(ood or [])}, without or [])
    factory = model or (chosen.model if chosen is not None else None)
    if chosen is not None and len(sets) < 3:
        raise DataError(
            f"none of the OOD sets of {chosen.name} is under {data}; `oodles bench --list` shows where they go"
        )
    if factory is None or "train" not in sets or "test" not in sets or len(sets) < 3:
        raise ArgumentError("bench needs a suite, or --model, --train, --test and at least one --ood NAME=PATH")
    id_set = chosen.name if chosen is not None else "id"
    how = chosen.transform if chosen is not None else transform(size, resize, mean, std)
    result = Tables()
    for run, path in _runs(checkpoint or []).items():
        network = load_model(factory, path)
        home = store / id_set / (run if limit is None else f"{run}-{limit}")
        standard = [each.spec for each in detector_list()] if chosen is None else list(chosen.detectors)
        headless = cosine_layer(network) is not None
        if headless:
            notices.print("a DeConf head: only scores of its logits and cosines apply")
            standard = ["msp", "max_logit", "energy", "entropy", "godin"]
            tables = ["main"]
        extraction = Extraction(
            how, home, limit, False if headless else layer, device, skip_bad, lambda text: notices.print(plain(text))
        )
        compared = own or _fitting(network, standard, labelled=sets["train"].labels is not None)
        deep = [each for each in map(parse, compared) if each.needs_network] if "main" in tables else []
        run_tables(
            tables,
            extraction.features(network, sets),
            main=compared,
            p=sparsity,
            id_set=id_set,
            run=run,
            bootstrap=1000 if intervals else 0,
            deep=deep,
            passes=extraction.passes(network, sets, deep) if deep else None,
            into=result,
        )
    if as_json:
        typer.echo(rows_json(result.all_rows()), nl=False)
    _show(result, id_set if paper and chosen is not None else None, id_set, out, quiet=as_json)


@app.command("select-p")
def select_p(
    images: Annotated[Path, typer.Argument(help="ID training images, to rank the weights by.")],
    held_out: Annotated[Path, typer.Option(help="ID images the network was not trained on.")],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    detector: Annotated[str, typer.Option(help="A detector with a sparsifier, whose p is to be chosen.")] = "dice",
    fine: Annotated[bool, typer.Option("--fine", help="Try values from 0.01 up, not the paper's six alone.")] = False,
    noise: Annotated[int, typer.Option(help="How many noise images to make.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    limit: Annotated[int | None, typer.Option(help="At most so many images of each set, chosen at random.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the curve here: a .png or .svg picture.")] = None,
    layer: LayerOption = None,
    size: SizeOption = 224,
    resize: ResizeOption = None,
    mean: MeanOption = IMAGENET_MEAN,
    std: StdOption = IMAGENET_STD,
    device: DeviceOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose DICE's sparsity p for your network, from ID images and noise alone.

    As in the paper: images whose every pixel is N(0, 1) stand in for the unknown. The p with the largest AUROC is
    chosen; values within one standard error of it are ties, and ties go to the larger p.

    Example: oodles select-p photos/train --held-out photos/val --model mynets:resnet18 --checkpoint r18.pt
    """
    import json

    import numpy as np

    from oodles.bench.datasets import ImageLoader, open_images
    from oodles.bench.sweep import PAPER_GRID
    from oodles.detectors import LogitDetector, parse
    from oodles.extraction import extract
    from oodles.plots import check_picture, save_figure, selection_curve
    from oodles.selection import FINE_GRID, NoiseImages
    from oodles.selection import select_p as choose

    chosen = parse(detector)
    if not isinstance(chosen, LogitDetector):
        raise ArgumentError(f"--detector {detector} has no sparsifier, so no p to choose")
    chosen.with_p(0.5)
    if out is not None:
        check_picture(out)
    how = transform(size, resize, mean, std)
    loaders = {
        name: ImageLoader(open_images(path).sample(limit), how, labels=False, skip_bad=skip_bad)
        for name, path in (("train", images), ("held_out", held_out))
    }
    network = load_model(model, checkpoint)
    noises = NoiseImages((3, how.size, how.size), noise, seed=seed)
    sources: dict[str, Iterable[Any]] = {**loaders, "outliers": noises}
    parts = {
        name: extract(network, source, layer=layer, device=device, labels=False) for name, source in sources.items()
    }
    for loader in loaders.values():
        tell_skipped(loader)
    found = choose(chosen, **parts, grid=FINE_GRID if fine else PAPER_GRID)
    grid = list(found.curve)
    curves = [np.array([100 * getattr(found.curve[each], name) for each in grid]) for name in ("auroc", "fpr95")]
    if out is not None:
        save_figure(selection_curve(grid, *curves, chosen=found.p), out)
    if as_json:
        rows = {str(each): row.as_dict() for each, row in found.curve.items()}
        typer.echo(
            json.dumps({"p": found.p, "best": found.best, "standard_error": found.standard_error, "curve": rows})
        )
        return
    for each, auroc, fpr95 in zip(grid, *curves, strict=True):
        mark = "  <- chosen" if each == found.p else ""
        typer.echo(f"p={each:<5g} AUROC {auroc:6.2f}  FPR95 {fpr95:6.2f}{mark}")
    notices.print(
        f"{found.detector.spec}: within {100 * found.standard_error:.2f} points of the best AUROC (p={found.best:g})"
    )


@app.command()
def analyze(
    features: Annotated[
        Path, typer.Argument(help="A folder with feature stores train, test and OOD sets, as bench keeps.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the figures (PNG, SVG) and their data (CSV).")],
    label: Annotated[int, typer.Option("--class", help="The class whose units are looked at, counted from 0.")] = 0,
    p: Annotated[float, typer.Option(help="Sparsity.")] = 0.9,
    ood: Annotated[str | None, typer.Option(help="The OOD set of the pictures; the first unless given.")] = None,
) -> None:
    """Draw the paper's figures from your own features, and measure what its theory says.

    Figures 1, 2, 3, 4 and the covariance figure, each as PNG, SVG and CSV, and the variance of every class's output
    with and without DICE on every set.

    Example: oodles analyze oodles-store/cifar10/densenet101-cifar10 --ood svhn --out figures
    """
    from oodles.bench.experiment import load_experiment
    from oodles.figures import draw_figures, variance_summary

    parts = load_experiment(features)
    written = draw_figures(parts, out, label=label, p=p, shown=ood)
    typer.echo(f"Variance of a class's output under DICE (p={p:g}) over that with all weights:")
    for name, low, mean, high, above in variance_summary(parts, p):
        typer.echo(f"  {name:14} from {low:.2f} to {high:.2f}, mean {mean:.2f}; larger in {above} classes")
    notices.print(plain(f"{len(written)} files in {out}"))


@datasets.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A dataset that `oodles data list` shows.")],
    data: DataOption = Path("data"),
) -> None:
    """Fetch a dataset from its original site: checked before it is unpacked, resumed where it stopped.

    What cannot be downloaded without an account or an agreement is explained instead.

    Example: oodles data fetch cifar10 --data data
    """
    from rich.progress import DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from oodles.bench.fetch import fetch as bring

    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notices, transient=True, disable=not notices.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        done = bring(name, data, progress=lambda here, total: bar.update(task, completed=here, total=total))
    if done.sha256 is None:
        typer.echo(f"{done.path} is there already")
    else:
        checked = "as published" if done.checked else f"no published checksum; SHA-256 {done.sha256}"
        typer.echo(f"{done.path} ({checked})")


@datasets.command("list")
def list_datasets(data: DataOption = Path("data")) -> None:
    """Show which datasets can be fetched, which must be asked for, and which are here."""
    from oodles.bench.fetch import SOURCES, ByHand

    for name, record in SOURCES.items():
        here = (
            "here" if (data / record.place).exists() else "by hand" if isinstance(record, ByHand) else "can be fetched"
        )
        typer.echo(f"{name:14} {here:15} {record.title}")


def _fitting(network: "nn.Module", specs: list[str], *, labelled: bool) -> list[str]:
    """The detectors there are the layers and labels for; the others are named."""
    from oodles.detectors import parse

    modules = {name for name, _ in network.named_modules()}
    reasons = {}
    for spec in specs:
        detector = parse(spec)
        if not {*detector.layers} <= modules:
            reasons[spec] = f"whose layers {type(network).__name__} has not"
        elif "labels" in detector.learns_from and not labelled:
            reasons[spec] = "which learns from labels, and the training images have none"
    for spec, reason in reasons.items():
        notices.print(plain(f"left out: {spec}, {reason}"))
    return [spec for spec in specs if spec not in reasons]


def _runs(checkpoints: list[Path]) -> dict[str, Path | None]:
    """A name for each checkpoint: its file name less the usual endings."""
    names = [re.sub(r"(\.pth|\.pt|\.tar|\.safetensors|\.ckpt|\.bin)+$", "", path.name) for path in checkpoints]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"two checkpoints are called {twice!r}; features are kept by that name, so rename one")
    return dict(zip(names, checkpoints, strict=True)) or {"model": None}


def _sets(chosen: "Suite | None", data: Path, own: dict[str, Path | None], without: list[str]) -> dict[str, "ImageSet"]:
    """The suite's sets that are there, then the user's own."""
    from oodles.bench.datasets import open_images

    sets: dict[str, ImageSet] = {}
    if chosen is not None:
        sets["train"], sets["test"] = chosen.open_id(data)
        sets |= {name: images for name, images in chosen.open_ood(data).items() if name not in without}
        if chosen.missing(data):
            notices.print(f"not under {data}: {', '.join(chosen.missing(data))}")
    return sets | {name: open_images(path) for name, path in own.items() if path is not None}


def _show(result: "Tables", paper: str | None, id_set: str, out: Path | None, *, quiet: bool) -> None:
    from oodles.bench.report import compare, latex, markdown, print_view, rows_csv, rows_json, sweep_view, write_text
    from oodles.bench.tables import TABLES

    accuracy = ", ".join(f"{value:.2%}" for value in result.accuracy.values())
    views = {
        name: compare(rows, title=f"{id_set} (accuracy {accuracy}): {TABLES[name]}", paper=paper)
        for name, rows in result.rows.items()
        if rows
    }
    if result.points:
        views["sweep"] = sweep_view(result.points, title=f"{id_set}: {TABLES['sweep']}", paper=paper)
    for name, view in views.items():
        if not quiet:
            print_view(console, view)
            console.print()
        if out is not None:
            write_text(out / f"{name}.md", markdown(view))
            write_text(out / f"{name}.tex", latex(view))
    if out is not None:
        rows = result.all_rows()
        write_text(out / "rows.json", rows_json(rows))
        write_text(out / "rows.csv", rows_csv(rows))


def _list_suites(data: Path) -> None:
    from oodles.bench.suites import SUITES
    from oodles.bench.tables import TABLES

    for record in SUITES.values():
        typer.echo(f"{record.name}: {record.model}, {record.classes} classes, DICE at p={record.p:g}")
        for part, path in record.found(data).items():
            typer.echo(f"  {part:14} {path if path is not None else 'not found'}")
    typer.echo("tables:")
    for name, what in TABLES.items():
        typer.echo(f"  {name:14} {what}")
