"""``oodles bench``."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from oodles.cli.checks import check_choice, read_class_names
from oodles.cli.common import console, named_paths, notice, open_set, say
from oodles.cli.options import ClassesOption, DataOption, JsonOption, RunOptions, complete_detector, load_model, one_of
from oodles.errors import ArgumentError, DataError
from oodles.paper.published import TABLES

if TYPE_CHECKING:
    from oodles.bench.suites import Suite
    from oodles.data.readers import ImageSet

COSINE_DETECTORS = ("msp", "max_logit", "energy", "entropy", "godin")  # for a DeConf head


def _complete_suite(incomplete: str) -> list[str]:
    from oodles.bench.suites import ALL_SUITES

    return one_of(*ALL_SUITES)(incomplete)


def bench(
    given: RunOptions,
    suite: Annotated[
        str | None,
        Argument(
            help="cifar10, cifar100 or imagenet: the paper's sets and network. openood-cifar10, openood-cifar100, "
            "openood-imagenet200 or openood-imagenet: OpenOOD's sets, near and far, and its metrics.",
            autocompletion=_complete_suite,
        ),
    ] = None,
    data: DataOption = Path("data"),
    table: Annotated[
        list[str] | None,
        Option(
            help="main, sparsification, selection, sweep, msp, or all; may be repeated. Default: main.",
            autocompletion=one_of(*TABLES, "all"),
        ),
    ] = None,
    model: Annotated[str | None, Option(help="Your classifier, package.module:factory.")] = None,
    classes: ClassesOption = None,
    checkpoint: Annotated[
        list[Path] | None,
        Option(help="Its weights; repeat it to average over several.", exists=True, dir_okay=False),
    ] = None,
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
    published: Annotated[
        bool, Option("--published", help="Add the numbers of the paper, or of OpenOOD's leaderboard.")
    ] = False,
    intervals: Annotated[bool, Option("--intervals", help="Add 95 % bootstrap intervals.")] = False,
    store: Annotated[Path, Option(help="Folder where features are kept for the next run.")] = Path("oodles-store"),
    out: Annotated[
        Path | None,
        Option(help="Folder for rows.json, rows.csv and the tables (Markdown, LaTeX).", file_okay=False),
    ] = None,
    verify: Annotated[
        bool,
        Option(
            "--verify", help="Read the images of stored features again and compare, not only their sizes and times."
        ),
    ] = False,
    as_json: JsonOption = False,
    list_suites: Annotated[bool, Option("--list", help="Show the suites, their sets and where each is found.")] = False,
) -> None:
    """Compare detectors on a suite of the paper or of OpenOOD, or on your own model: FPR95 and AUROC per OOD set.

    The network runs once per image, whatever the number of detectors and tables; detectors with input steps add
    their gradients. torchrun --nproc-per-node N -m oodles bench ... divides the images among N processes.

    Examples: oodles bench cifar10 --data DIR --checkpoint densenet101-cifar10.pth.tar --table all --published

    oodles bench --model mynets:resnet18 --checkpoint r18.pt --train imgs/train --test imgs/test
    --ood sketches=imgs/sketches
    """
    if list_suites:
        _list_suites(data)
        return
    from oodles.bench.suites import suite as suite_by_name

    for name in table or []:
        check_choice("table", name, (*TABLES, "all"))
    tables = list(TABLES) if "all" in (table or []) else list(dict.fromkeys(table or ["main"]))
    runs = _runs(checkpoint or [])
    class_names = None if classes is None else read_class_names(classes)
    paths = {"train": train, "test": test, **named_paths(ood or [])}
    chosen = None if suite is None else suite_by_name(suite)
    if chosen is None:
        if without:
            raise ArgumentError(f"--without {without[0]} leaves out a set of a suite; name a suite, or leave it out")
        if model is None or None in paths.values() or len(paths) < 3:
            raise ArgumentError("bench needs a suite, or --model, --train, --test and at least one --ood NAME=PATH")
    elif given.given():
        raise ArgumentError(f"{suite} has its own preprocessing; leave out --size, --resize, --mean and --std")
    _check_published(chosen, list(paths), published=published, intervals=intervals)
    sets = {} if chosen is None else _suite_sets(chosen, data, without or [])
    for name, path in paths.items():
        if path is not None:
            sets[name] = open_set(path, labels=name in ("train", "test"))
    if chosen is not None and len(sets) < 3:
        raise DataError(f"no OOD set of {chosen.name} is under {data}; `oodles bench --list` shows where they go")

    from oodles.bench.run import Tables, check_tables, run_tables
    from oodles.bench.tables import print_table, rows_json
    from oodles.detectors import DICE, detector_list, parse
    from oodles.distributed.processes import current, own_device
    from oodles.models.deconf import cosine_layer

    if out is not None:
        check_tables(out)
    sparsity = DICE(p=p if p is not None else chosen.p if chosen is not None else 0.9).p
    asked = {parse(text).spec: text for text in detector or []}
    id_set = "id" if chosen is None else chosen.name
    preprocessing = given.transform() if chosen is None else chosen.transform
    if chosen is not None and model is not None and chosen.other_transform is not None:
        preprocessing = chosen.other_transform
        notice(f"{model} gets OpenOOD's preprocessing: mean {preprocessing.mean}, std {preprocessing.std}")
    result = Tables()
    for run, path in runs.items():
        network = load_model(model or (chosen.model if chosen is not None else ""), path)
        cosine = cosine_layer(network) is not None
        if cosine:
            notice("a DeConf head: only detectors that use its logits or cosines apply")
        standard = COSINE_DETECTORS if cosine else chosen.detectors if chosen is not None else ()
        run_tables(
            ["main"] if cosine else tables,
            {name: images.sample(given.limit) for name, images in sets.items()},
            main=list(asked.values()) or standard or detector_list(),
            p=sparsity,
            id_set=id_set,
            run=run,
            bootstrap=1000 if intervals else 0,
            into=result,
            model=network,
            store=store / id_set / (run if given.limit is None else f"{run}-{given.limit}"),
            preprocessing=preprocessing,
            skip_bad=given.skip_bad,
            head=False if cosine else given.head,
            device=own_device(given.device),
            classes=class_names,
            verify=verify,
            tell=notice,
        )
    if current().rank:
        return
    shown = result.tables(id_set, paper=published, groups={} if chosen is None else chosen.groups, published=published)
    if as_json:
        typer.echo(rows_json(result.all_rows()), nl=False)
    else:
        for each in shown.values():
            print_table(console, each)
            console.print()
    if out is not None:
        result.write(out, shown)


def _runs(checkpoints: list[Path]) -> dict[str, Path | None]:
    """Name each checkpoint: its file name without the usual endings."""
    names = [re.sub(r"(\.pth|\.pt|\.tar|\.safetensors|\.ckpt|\.bin)+$", "", path.name) for path in checkpoints]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"two checkpoints are called {twice!r}; features are stored under that name, so rename one")
    return dict(zip(names, checkpoints, strict=True)) or {"model": None}


def _check_published(chosen: "Suite | None", sets: list[str], *, published: bool, intervals: bool) -> None:
    """Raise if an option asks for numbers that the suite does not have."""
    from oodles.bench.openood import has_leaderboard

    if published and (chosen is None or (chosen.groups and not has_leaderboard(chosen.name))):
        name = "your own sets" if chosen is None else chosen.name
        raise ArgumentError(f"--published has no numbers for {name}; leave it out")
    groups = {} if chosen is None else chosen.groups
    if groups and intervals:
        raise ArgumentError("--intervals does not apply to OpenOOD's metrics; leave it out")
    for name in sets:
        if name in groups:
            raise ArgumentError(f"--ood {name}=... is the name of a group of OpenOOD's sets; choose another name")


def _suite_sets(chosen: "Suite", data: Path, without: list[str]) -> dict[str, "ImageSet"]:
    """Open the suite's sets that are there."""
    if not data.is_dir():
        raise DataError(f"--data {data} does not exist; give the folder that holds the datasets of {chosen.name}")
    for name in without:
        check_choice("--without", name, (*chosen.ood, *chosen.extra))
    sets = {name: images for name, images in chosen.open_sets(data).items() if name not in without}
    if chosen.missing(data):
        notice(f"not under {data}: {', '.join(chosen.missing(data))}")
    unlisted = [name for name in chosen.unlisted(data) if name in sets]
    if unlisted:
        notice(f"without OpenOOD's image lists, so with every image that is there: {', '.join(unlisted)}")
    return sets


def _list_suites(data: Path) -> None:
    from oodles.bench.suites import ALL_SUITES

    for record in ALL_SUITES.values():
        say(f"{record.name}: {record.model}, {record.classes} classes, DICE at p={record.p:g}")
        for group, names in record.groups.items():
            say(f"  {group} OOD: {', '.join(names)}")
        for part, path in record.found(data).items():
            say(f"  {part:14} {path if path is not None else 'not found'}")
    say("tables:")
    for name, what in TABLES.items():
        say(f"  {name:14} {what}")
