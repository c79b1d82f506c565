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
from oodles.cli.verdicts import Outcome, print_csv, print_json, print_text
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
) -> None:
    """Classify and score inputs, and say which are in-distribution.

    Results are printed batch by batch, and memory does not grow with the number of images. If the network's output for
    an input is not finite, the score is null in JSON, with an error text, and empty in CSV, and the input is not
    in-distribution.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt

    To try it without a model of your own: oodles score photo.jpg
    """
    if as_csv and as_json:
        raise ArgumentError("--csv and --json exclude each other; give one of them")
    check_number("--batch-size", batch_size)
    check_number("--workers", workers, most=MOST_WORKERS)
    check_checkpoints([checkpoint])
    options = image_options(size, resize, mean, std)
    guard, inputs = split_paths("score", paths, model)
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
    if as_json:
        print_json(batches, {"detector": spec, "threshold": limit}, "verdicts")
    elif as_csv:
        print_csv(batches)
    else:
        print_text(batches)
        skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
        notice(f"{counts['ID']} of {counts['ID'] + counts['OOD']} in-distribution ({spec} >= {limit:.7g}){skipped}")


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
