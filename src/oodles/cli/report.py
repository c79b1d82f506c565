"""``oodles report``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli.checks import check_store
from oodles.cli.common import named_paths, say
from oodles.cli.options import KeyOption
from oodles.deploy.results.rows import FORMATS
from oodles.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from oodles.report.document import Part


def report(
    sources: Annotated[
        list[Path],
        Argument(
            metavar="SOURCE...",
            help="rows.json of oodles bench or demo; a folder made by oodles fit, with --features; results of oodles "
            "score (.jsonl, .csv, .parquet). Several become one report.",
        ),
    ],
    out: Annotated[Path, Option(help="The HTML file; the same facts are written beside it as JSON.")] = Path(
        "report.html"
    ),
    features: Annotated[
        list[Path] | None, Option(help="For a guard: ID features it was not fitted on; may be repeated.")
    ] = None,
    ood: Annotated[list[str] | None, Option(help="For a guard: NAME=FEATURES of an OOD set; may be repeated.")] = None,
    train: Annotated[
        Path | None,
        Option(help="For a guard: the features it was fitted on, for nearest training rows."),
    ] = None,
    images: Annotated[
        list[str] | None,
        Option(
            help="For a guard: NAME=PATH of the images that features came from, to show some. NAME is id, train or an "
            "OOD set; may be repeated."
        ),
    ] = None,
    title: Annotated[str, Option(help="The heading of the report.")] = "Out-of-distribution report",
    key: KeyOption = None,
) -> None:
    """Write one HTML file that one can mail: a summary and a recommendation, then figures, tables and examples.

    It needs no network and no JavaScript, and can be printed. Results of oodles score name images, which are opened if
    they are still there, and small copies of some become part of the file.

    Example: oodles report guard --features features/val --ood sketches=features/sketches --out report.html
    """
    from oodles.deploy.artefact import is_guard

    guards = [path for path in sources if is_guard(path)]
    for path in sources:
        if path not in guards:
            _check_file(path)
    if guards and not features:
        raise ArgumentError(f"{guards[0]} is a guard: give ID features that it was not fitted on with --features")
    if not guards and any((features, ood, images, train)):
        raise ArgumentError("--features, --ood, --train and --images belong to a guard, and no source is one")
    outliers, shown = named_paths(ood or []), named_paths(images or [], "--images", ())
    stores = [*(features or []), *outliers.values(), *([] if train is None else [train])]
    for store in stores:
        check_store(store)

    from oodles.report.document import check_name, write_report
    from oodles.report.rows import read_rows, rows_parts
    from oodles.report.scored import results_part

    check_name(out)
    parts: list[Part] = []
    for path in sources:
        if path in guards:
            parts.append(_guard_part(path, features or [], outliers, train, shown, key))
        else:
            parts += rows_parts(read_rows(path)) if path.suffix.lower() == ".json" else [results_part(path)]
    beside = write_report(out, *parts, title=title)
    say(f"report: {out}   the same as JSON: {beside}")


def _check_file(path: Path) -> None:
    """Raise unless a path can be a file of rows or of results."""
    if not path.exists():
        raise FileError(f"{path} does not exist; give rows.json, a guard, or results of `oodles score`")
    if path.is_dir():
        raise FileError(f"{path} is a folder without guard.json; give rows.json, a guard, or results of `oodles score`")
    if path.suffix.lower() not in (".json", *FORMATS):
        raise ArgumentError(f"{path} must end in .json (rows of a benchmark) or {', '.join(FORMATS)} (scored inputs)")


def _guard_part(
    folder: Path,
    features: Sequence[Path],
    ood: dict[str, Path],
    train: Path | None,
    images: dict[str, Path],
    key: Path | None,
) -> "Part":
    from oodles.data.readers import open_images
    from oodles.deploy.saved import SavedGuard
    from oodles.features import Features
    from oodles.report.guards import guard_part

    saved = SavedGuard(folder, key=key)
    for store in (*features, *ood.values(), *([] if train is None else [train])):
        saved.check_features(store)
    parts = [Features.load(store) for store in features]
    return guard_part(
        saved.fitted,
        saved.threshold,
        parts[0] if len(parts) == 1 else Features.concat(parts),
        ood={name: Features.load(store) for name, store in ood.items()},
        train=None if train is None else Features.load(train),
        class_names=saved.class_names,
        images={name: open_images(path) for name, path in images.items()},
    )
