"""``oodles bench``."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import check_checkpoints, check_choice, check_number, check_out, image_options
from oodles.cli.common import console, load_model, named_paths, notice, report_ignored, say
from oodles.cli.completion import complete_detector, one_of
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from torch import nn

    from oodles.bench.experiment import Tables
    from oodles.bench.suites import Suite
    from oodles.data.readers import ImageSet
    from oodles.data.transforms import Transform


# the names in oodles.bench.suites and oodles.paper.tables, which import torch
SUITE_NAMES = ("cifar10", "cifar100", "imagenet")
OPENOOD_NAMES = ("openood-cifar10", "openood-cifar100", "openood-imagenet200", "openood-imagenet")
TABLE_NAMES = ("main", "sparsification", "selection", "sweep", "msp")


def bench(
    suite: Annotated[
        str | None,
        Argument(
            help="cifar10, cifar100 or imagenet: the paper's sets and network. openood-cifar10, openood-cifar100, "
            "openood-imagenet200 or openood-imagenet: OpenOOD's sets, near and far, and its metrics.",
            autocompletion=one_of(*SUITE_NAMES, *OPENOOD_NAMES),
        ),
    ] = None,
    data: common.DataOption = Path("data"),
    table: Annotated[
        list[str] | None,
        Option(
            help="main, sparsification, selection, sweep, msp, or all; may be repeated. Default: main.",
            autocompletion=one_of(*TABLE_NAMES, "all"),
        ),
    ] = None,
    model: Annotated[str | None, Option(help="Your classifier, package.module:factory.")] = None,
    checkpoint: Annotated[list[Path] | None, Option(help="Its weights; repeat it to average over several.")] = None,
    train: Annotated[Path | None, Option(help="ID training images.")] = None,
    test: Annotated[Path | None, Option(help="ID test images.")] = None,
    ood: Annotated[list[str] | None, Option(help="OOD images as NAME=PATH; may be repeated.")] = None,
    without: Annotated[list[str] | None, Option(help="Leave an OOD set of the suite out.")] = None,
    detector: Annotated[
        list[str] | None,
        Option(
            help="A name such as knn, stages joined by +, e.g. 'react(90)+dice(0.7)', or package.module:Class.",
            autocompletion=complete_detector,
        ),
    ] = None,
    p: Annotated[float | None, Option(help="Sparsity of the ablations. Default: the suite's.")] = None,
    paper: Annotated[bool, Option("--paper", help="Add the paper's figures and the differences.")] = False,
    published: Annotated[bool, Option("--published", help="Add the AUROC of OpenOOD's leaderboard.")] = False,
    intervals: Annotated[bool, Option("--intervals", help="Add 95 % bootstrap intervals.")] = False,
    store: Annotated[Path, Option(help="Folder where features are kept for the next run.")] = Path("oodles-store"),
    limit: common.LimitOption = None,
    out: Annotated[Path | None, Option(help="Folder for rows.json, rows.csv and the tables (Markdown, LaTeX).")] = None,
    head: common.HeadOption = None,
    size: common.OwnSizeOption = None,
    resize: common.ResizeOption = None,
    mean: common.OwnMeanOption = None,
    std: common.OwnStdOption = None,
    device: common.DeviceOption = None,
    skip_bad: common.SkipOption = False,
    verify: Annotated[
        bool,
        Option(
            "--verify", help="Read the images of stored features again and compare, not only their sizes and times."
        ),
    ] = False,
    as_json: common.JsonOption = False,
    list_suites: Annotated[bool, Option("--list", help="Show the suites, their sets and where each is found.")] = False,
) -> None:
    """Compare detectors on a suite of the paper or of OpenOOD, or on your own model: FPR95 and AUROC per OOD set.

    The network runs once per image, whatever the number of detectors and tables; detectors with input steps add
    their gradients. torchrun --nproc-per-node N -m oodles bench ... divides the images among N processes.

    Examples: oodles bench cifar10 --data DIR --checkpoint densenet101-cifar10.pth.tar --table all --paper

    oodles bench --model mynets:resnet18 --checkpoint r18.pt --train imgs/train --test imgs/test
    --ood sketches=imgs/sketches
    """
    from oodles.data.readers import open_images

    if list_suites:
        _list_suites(data)
        return
    for name in table or []:
        check_choice("table", name, (*TABLE_NAMES, "all"))
    tables = list(TABLE_NAMES) if "all" in (table or []) else list(dict.fromkeys(table or ["main"]))
    if suite is not None and any(option is not None for option in (size, resize, mean, std)):
        raise ArgumentError(f"{suite} has its own preprocessing; leave out --size, --resize, --mean and --std")
    options = image_options(
        224 if size is None else size, resize, mean or common.IMAGENET_MEAN, std or common.IMAGENET_STD
    )
    runs = _runs(checkpoint or [])
    own_paths = {"train": train, "test": test, **named_paths(ood or [])}
    check_out(out)
    check_number("--limit", limit)
    if suite in OPENOOD_NAMES:
        _check_openood(own_paths, paper=paper, intervals=intervals)
    elif published:
        raise ArgumentError(f"--published needs one of OpenOOD's suites ({', '.join(OPENOOD_NAMES)}); or leave it out")
    if suite is None:
        _check_without_suite(model, own_paths, paper=paper, without=without or [])
    else:
        check_choice("suite", suite, (*SUITE_NAMES, *OPENOOD_NAMES))
        if not data.is_dir():
            raise DataError(f"--data {data} does not exist; give the folder that holds the datasets of {suite}")
    own_sets = {name: open_images(path) for name, path in own_paths.items() if path is not None}
    for name, images in own_sets.items():
        report_ignored(images, labels=name in ("train", "test"))

    from oodles.bench.experiment import Extraction, Tables, run_tables
    from oodles.bench.openood import has_leaderboard
    from oodles.bench.suites import suite as suite_by_name
    from oodles.bench.tables import rows_json
    from oodles.detectors import detector_list, parse
    from oodles.detectors.network_detector import needs_network
    from oodles.distributed.processes import current, own_device
    from oodles.models.deconf import cosine_layer

    chosen = None if suite is None else suite_by_name(suite)
    if published and not has_leaderboard(suite or ""):
        raise ArgumentError(f"--published has no numbers for {suite}; leave it out")
    sparsity = p if p is not None else chosen.p if chosen is not None else 0.9
    parse(f"dice({sparsity})")
    own = [parse(text).spec for text in detector or []]
    sets = ({} if chosen is None else _suite_sets(chosen, data, without or [])) | own_sets
    if chosen is not None and len(sets) < 3:
        raise DataError(f"no OOD set of {chosen.name} is under {data}; `oodles bench --list` shows where they go")
    factory = model or (chosen.model if chosen is not None else "")
    id_set = chosen.name if chosen is not None else "id"
    preprocessing = options.transform() if chosen is None else _preprocessing(chosen, model)
    result = Tables()
    for run, path in runs.items():
        network = load_model(factory, path)
        folder = store / id_set / (run if limit is None else f"{run}-{limit}")
        standard = list(chosen.detectors) if chosen is not None else []
        standard = standard or [each.spec for each in detector_list()]
        cosine_head = cosine_layer(network) is not None
        if cosine_head:
            notice("a DeConf head: only detectors that use its logits or cosines apply")
            standard = ["msp", "max_logit", "energy", "entropy", "godin"]
            tables = ["main"]
        extraction = Extraction(
            preprocessing, folder, limit, False if cosine_head else head, own_device(device), skip_bad, notice, verify
        )
        compared = own or _applicable(network, standard, labelled=sets["train"].labels is not None)
        deep = [each for each in map(parse, compared) if needs_network(each)] if "main" in tables else []
        features, ready = extraction.run(network, sets, deep)
        if current().rank:
            continue  # the first process has all features and computes the tables
        run_tables(
            tables,
            features,
            main=compared,
            p=sparsity,
            id_set=id_set,
            run=run,
            bootstrap=1000 if intervals else 0,
            deep=ready,
            into=result,
        )
    if current().rank:
        return
    if as_json:
        typer.echo(rows_json(result.all_rows()), nl=False)
    groups = chosen.groups if chosen is not None else {}
    _show(result, id_set, out, paper=paper, groups=groups, published=published, quiet=as_json)


def _preprocessing(chosen: "Suite", model: str | None) -> "Transform":
    """The suite's transform; says so if another network gets a different one."""
    if model is None or chosen.other_transform is None:
        return chosen.transform
    transform = chosen.other_transform
    notice(f"{model} gets OpenOOD's preprocessing: mean {transform.mean}, std {transform.std}")
    return transform


def _applicable(network: "nn.Module", specs: list[str], *, labelled: bool) -> list[str]:
    """The detectors whose layers and labels are available; says which ones are left out."""
    from oodles.detectors import parse
    from oodles.detectors.network_detector import layers_of

    modules = {name for name, _ in network.named_modules()}
    reasons = {}
    for spec in specs:
        detector = parse(spec)
        if not {*layers_of([detector])} <= modules:
            reasons[spec] = f"whose layers {type(network).__name__} does not have"
        elif "labels" in detector.learns_from and not labelled:
            reasons[spec] = "which needs labels, and the training images have none"
    for spec, reason in reasons.items():
        notice(f"left out: {spec}, {reason}")
    return [spec for spec in specs if spec not in reasons]


def _runs(checkpoints: list[Path]) -> dict[str, Path | None]:
    """A name for each checkpoint: its file name without the usual endings."""
    names = [re.sub(r"(\.pth|\.pt|\.tar|\.safetensors|\.ckpt|\.bin)+$", "", path.name) for path in checkpoints]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"two checkpoints are called {twice!r}; features are stored under that name, so rename one")
    check_checkpoints(checkpoints)
    return dict(zip(names, checkpoints, strict=True)) or {"model": None}


def _check_without_suite(
    model: str | None, sets: Mapping[str, Path | None], *, paper: bool, without: Sequence[str]
) -> None:
    """Raise unless the options describe an experiment without one of the paper's suites."""
    if paper:
        raise ArgumentError("--paper needs one of the paper's suites; name one, or leave it out")
    if without:
        raise ArgumentError(f"--without {without[0]} leaves out a set of a suite; name a suite, or leave it out")
    if model is None or None in sets.values() or len(sets) < 3:
        raise ArgumentError("bench needs a suite, or --model, --train, --test and at least one --ood NAME=PATH")


def _check_openood(sets: Mapping[str, Path | None], *, paper: bool, intervals: bool) -> None:
    """Raise if an option does not apply to OpenOOD's suites."""
    if paper:
        raise ArgumentError("--paper needs one of the paper's suites; OpenOOD's leaderboard is --published")
    if intervals:
        raise ArgumentError("--intervals does not apply to OpenOOD's metrics; leave it out")
    for name in sets:
        if name in ("near", "far"):
            raise ArgumentError(f"--ood {name}=... is the name of a group of OpenOOD's sets; choose another name")


def _suite_sets(chosen: "Suite", data: Path, without: list[str]) -> dict[str, "ImageSet"]:
    """The suite's sets that were found."""
    for name in without:
        check_choice("--without", name, (*chosen.ood, *chosen.extra))
    sets = dict(zip(("train", "test"), chosen.open_id(data), strict=True))
    sets |= {name: images for name, images in chosen.open_ood(data).items() if name not in without}
    if chosen.missing(data):
        notice(f"not under {data}: {', '.join(chosen.missing(data))}")
    unlisted = [name for name in chosen.unlisted(data) if name in sets]
    if unlisted:
        notice(f"without OpenOOD's image lists, so with every image that is there: {', '.join(unlisted)}")
    return sets


def _show(
    result: "Tables",
    id_set: str,
    out: Path | None,
    *,
    paper: bool,
    groups: Mapping[str, Sequence[str]],
    published: bool,
    quiet: bool,
) -> None:
    from oodles.bench.openood import AUPR, compare_groups
    from oodles.bench.tables import compare, latex, markdown, print_view, rows_csv, rows_json, sweep_view, write_text
    from oodles.paper.tables import TABLES

    accuracy = ", ".join(f"{value:.2%}" for value in result.accuracy.values())
    cited = id_set if paper else None
    views = {}
    for name, rows in result.rows.items():
        what = "OpenOOD's metrics" if groups and name == "main" else TABLES[name]
        title = f"{id_set} (accuracy {accuracy}): {what}"
        if rows and groups:
            leaderboard = id_set if published else None
            views[name] = compare_groups(rows, groups, title=title, published=leaderboard)
            views[f"{name}-aupr"] = compare_groups(rows, groups, AUPR, title=title)
        elif rows:
            views[name] = compare(rows, title=title, paper=cited)
    if result.points:
        views["sweep"] = sweep_view(result.points, title=f"{id_set}: {TABLES['sweep']}", paper=cited)
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
    from oodles.bench.suites import OPENOOD, SUITES
    from oodles.paper.tables import TABLES

    for record in (SUITES | OPENOOD).values():
        say(f"{record.name}: {record.model}, {record.classes} classes, DICE at p={record.p:g}")
        for group, names in record.groups.items():
            say(f"  {group} OOD: {', '.join(names)}")
        for part, path in record.found(data).items():
            say(f"  {part:14} {path if path is not None else 'not found'}")
    say("tables:")
    for name, what in TABLES.items():
        say(f"  {name:14} {what}")
