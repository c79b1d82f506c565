"""``oodles score``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import MOST_WORKERS, check_checkpoints, check_number, image_options
from oodles.cli.common import notice
from oodles.cli.guards import SavedGuard, load_saved, open_inputs, over_images, split_paths
from oodles.cli.score_with_ray import RayOptions, score_with_ray
from oodles.cli.verdicts import Outcome, check_file, print_csv, print_json, print_text, write_file
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from oodles.data.loaders import ImageLoader
    from oodles.features import Features
    from oodles.guard import Guard


def score(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="[GUARD] INPUTS",
            help="A folder made by oodles fit, then images, folders or .zip files of images, CIFAR batches, or "
            "features made by oodles extract. Without a guard: a small CIFAR-10 network that comes with oodles.",
        ),
    ],
    model: common.GuardedModelOption = None,
    checkpoint: common.CheckpointOption = None,
    size: common.KnownSizeOption = None,
    resize: common.ResizeOption = None,
    mean: common.KnownMeanOption = None,
    std: common.KnownStdOption = None,
    batch_size: Annotated[int, Option(help="How many images the network is given at a time.")] = 32,
    workers: Annotated[int | None, Option(help="Threads that decode images. Default: one per core, 2 to 16.")] = None,
    device: common.DeviceOption = None,
    key: common.KeyOption = None,
    skip_bad: common.SkipOption = False,
    out: Annotated[
        Path | None,
        Option(
            help="Write the results to this file and print nothing: .parquet, .csv, or .npy for the scores alone. The "
            "file appears when it is complete. With --ray: a new folder of Parquet files."
        ),
    ] = None,
    as_csv: Annotated[
        bool,
        Option(
            "--csv",
            help="Print CSV and nothing else, with the columns input,label,class,score,is_id. "
            "Control characters in names are escaped.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        Option(
            "--json",
            help="Print one JSON document and nothing else. It is written batch by batch, so its end is missing if the "
            "command fails halfway.",
        ),
    ] = False,
    use_ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Score image files, or Parquet files with the columns path and bytes, by Ray workers. An image that "
            "cannot be read is a row with an error. Every machine must have the files under the same paths.",
        ),
    ] = False,
    ray_address: Annotated[
        str | None, Option(help="Address of a Ray cluster. Default: RAY_ADDRESS, or Ray is started on this machine.")
    ] = None,
    ray_workers: Annotated[
        int | None, Option(help="Default: as many as there is room for beside one CPU, which is needed for reading.")
    ] = None,
    ray_cpus: Annotated[float, Option(help="CPUs of each worker. With --device cuda it also has one GPU.")] = 1.0,
) -> None:
    """Classify and score inputs, and say which are in-distribution.

    Results are printed or written batch by batch, and memory does not grow with the number of images. If the network's
    output for an input is not finite, the score is null in JSON and Parquet, with an error text, and empty in CSV, and
    the input is not in-distribution.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt

    To try it without a model of your own: oodles score photo.jpg
    """
    if as_csv and as_json:
        raise ArgumentError("--csv and --json exclude each other; give one of them")
    if out is not None and (as_csv or as_json):
        raise ArgumentError("--out writes a file and prints no results; leave out --csv and --json")
    check_number("--batch-size", batch_size)
    check_number("--workers", workers, most=MOST_WORKERS)
    check_checkpoints([checkpoint])
    options = image_options(size, resize, mean, std)
    guard, inputs = split_paths("score", paths, model)
    if use_ray:
        if out is None or workers is not None or as_csv or as_json:
            raise ArgumentError("--ray writes a folder, --out FOLDER, and has --ray-workers in place of --workers")
        cluster = RayOptions(ray_address, ray_workers, ray_cpus, batch_size)
        score_with_ray(cluster, guard, inputs, out, options, key, model, checkpoint, device)
        return
    if out is not None:
        check_file(out)
    sources = open_inputs(inputs)

    from oodles.data.loaders import WORKERS, ImageLoader
    from oodles.features import Features

    saved = load_saved(guard, key)
    guarded: Guard | None = None
    parts: list[Iterator[list[Outcome]]] = []
    for source in sources:
        if isinstance(source, Path):
            saved.check_features(source)
            parts.append(_score_features(saved, source, Features.load(source)))
            continue
        transform = saved.preprocessing(options)
        loader = ImageLoader(
            source, transform, labels=False, skip_bad=skip_bad, batch_size=batch_size, workers=workers or WORKERS
        )
        if guarded is None:
            guarded = saved.with_model(model, checkpoint, device)
        parts.append(_score_images(guarded, loader, device))
    counts: Counter[str] = Counter()
    batches = _counting(chain.from_iterable(parts), counts)
    spec, limit = saved.detector.spec, saved.threshold.value
    if out is not None:
        write_file(out, batches)
    elif as_json:
        print_json(batches, {"detector": spec, "threshold": limit}, "verdicts")
    elif as_csv:
        print_csv(batches)
    else:
        print_text(batches)
    if not as_json and not as_csv:
        skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
        where = "" if out is None else f"; written to {out}"
        share = f"{counts['ID']} of {counts['ID'] + counts['OOD']} in-distribution"
        notice(f"{share} ({spec} >= {limit:.7g}){skipped}{where}")


def _score_features(saved: SavedGuard, folder: Path, features: "Features") -> Iterator[list[Outcome]]:
    """Verdicts on the rows of a feature store."""
    class_names = saved.class_names or features.class_names
    start = 0
    for batch in features.batches():
        names = [f"{folder}[{row}]" for row in range(start, start + len(batch))]
        scores = saved.detector.score(batch)
        yield _verdicts(names, batch.logits.argmax(dim=1), scores, saved.threshold.is_id(scores), class_names)
        start += len(batch)


def _score_images(guard: "Guard", loader: "ImageLoader", device: str | None) -> Iterator[list[Outcome]]:
    """Verdicts on images; those that were skipped are in their places."""

    def judge(names: list[str], images: "Tensor") -> list[Outcome]:
        verdict = guard(images)
        return _verdicts(names, verdict.label, verdict.score, verdict.is_id, guard.class_names)

    return over_images(loader, device, judge, lambda name, problem: Outcome(name, problem=problem))


def _verdicts(
    names: Sequence[str], label: "Tensor", score: "Tensor", is_id: "Tensor", class_names: Sequence[str]
) -> list[Outcome]:
    rows = zip(names, label.tolist(), score.tolist(), is_id.tolist(), strict=True)
    known = dict(enumerate(class_names))
    return [Outcome(name, number, known.get(number), value, accepted) for name, number, value, accepted in rows]


def _counting(batches: Iterable[list[Outcome]], counts: "Counter[str]") -> Iterator[list[Outcome]]:
    """The same batches; ``counts`` says how many inputs were ID, OOD and skipped so far."""
    for batch in batches:
        counts.update("skipped" if each.problem else "ID" if each.is_id else "OOD" for each in batch)
        yield batch
