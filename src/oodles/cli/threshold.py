"""``oodles threshold``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from oodles.cli.checks import check_guard, check_id_rate, check_store
from oodles.cli.common import KeyOption, say
from oodles.cli.guards import is_exported_guard, load_saved
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from oodles.calibration import Threshold

    Floats = npt.NDArray[Any]


def threshold(
    guard: Annotated[
        Path, Argument(help="A folder made by oodles fit, or an exported guard; its detector stays as it is.")
    ],
    features: Annotated[
        Path | None,
        Option(
            help="ID features not used in training, made by oodles extract. Default: the scores that the guard keeps "
            "of its calibration set."
        ),
    ] = None,
    id_rate: Annotated[
        float | None, Option(help="Fraction of ID inputs that should be accepted. Default: the guard's.")
    ] = None,
    key: KeyOption = None,
) -> None:
    """Set a guard's threshold again, without fitting: for another ID rate, or on other ID images.

    An exported guard is changed in place: it need not be exported again.

    Example: oodles threshold guard --id-rate 0.99
    """
    exported = is_exported_guard(guard)
    if not exported:
        check_guard(guard)
    if features is not None:
        check_store(features)
    if id_rate is not None:
        check_id_rate(id_rate)

    from oodles.calibration import calibrate

    if exported:
        old, save = _exported(guard, features, key)
        scores, origin = old.id_scores, "scores of the calibration set"
    else:
        old, scores, save = _saved(guard, features, key)
        origin = "scores of the calibration set" if features is None else f"rows of {features}"
    if scores is None:
        raise ArgumentError(f"{guard} keeps no scores of its calibration set; give ID features with --features")
    new = calibrate(scores, old.id_rate if id_rate is None else id_rate)
    save(new)
    before, after = (float(each.is_id(scores).mean()) for each in (old, new))
    say(f"old threshold  {_describe(old)}")
    say(f"new threshold  {_describe(new)}")
    say(f"accepted       {after:.2%} of the {len(scores):,} {origin}, {before:.2%} before")


def _exported(guard: Path, features: Path | None, key: Path | None) -> "tuple[Threshold, Callable[[Threshold], None]]":
    """The threshold of an exported guard, and how another one is saved."""
    from oodles.deploy.artefact import replace_threshold
    from oodles.deploy.exported import ExportedGuard

    if features is not None or key is not None:
        raise ArgumentError(f"{guard} is exported: it takes no features and has no key; leave out --features and --key")
    old = ExportedGuard.open(guard).threshold
    return old, lambda new: replace_threshold(guard, new.as_record())


def _saved(
    guard: Path, features: Path | None, key: Path | None
) -> "tuple[Threshold, Floats | None, Callable[[Threshold], None]]":
    """The threshold of a saved guard, ID scores to set another one on, and how that is saved."""
    from oodles.deploy.saving import save_threshold
    from oodles.features import Features

    saved = load_saved(guard, key)
    scores = saved.threshold.id_scores
    if features is not None:
        saved.check_features(features)
        scores = saved.detector.score(Features.load(features)).double().numpy()
    return saved.threshold, scores, lambda new: save_threshold(guard, new, key)


def _describe(limit: "Threshold") -> str:
    return f"{limit.value:.7g} ({100 * limit.id_rate:g} % of ID, set on {limit.calibration_size:,} rows)"
