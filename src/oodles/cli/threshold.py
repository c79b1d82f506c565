"""``oodles threshold``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli.checks import check_guard, check_id_rate, check_store
from oodles.cli.common import KeyOption, say
from oodles.cli.guards import load_saved

if TYPE_CHECKING:
    from oodles.calibration import Threshold


def threshold(
    guard: Annotated[Path, Argument(help="A folder made by oodles fit; its detector stays as it is.")],
    features: Annotated[Path, Option(help="ID features not used in training, made by oodles extract.")],
    id_rate: Annotated[
        float | None, Option(help="Fraction of ID inputs that should be accepted. Default: the guard's.")
    ] = None,
    key: KeyOption = None,
) -> None:
    """Set a guard's threshold again, without fitting: for another ID rate, or on other ID images.

    Example: oodles threshold guard --features features/val --id-rate 0.99
    """
    check_guard(guard)
    check_store(features)
    if id_rate is not None:
        check_id_rate(id_rate)

    from oodles.calibration import calibrate
    from oodles.features import Features
    from oodles.persistence import save_threshold

    saved = load_saved(guard, key)
    saved.check_features(features)
    scores = saved.detector.score(Features.load(features))
    old = saved.threshold
    new = calibrate(scores, old.id_rate if id_rate is None else id_rate)
    save_threshold(guard, new, key)
    before, after = (float(each.is_id(scores).double().mean()) for each in (old, new))
    say(f"old threshold  {_describe(old)}")
    say(f"new threshold  {_describe(new)}")
    say(f"accepted       {after:.2%} of the {len(scores):,} rows of {features}, {before:.2%} before")


def _describe(limit: "Threshold") -> str:
    return f"{limit.value:.7g} ({100 * limit.id_rate:g} % of ID, set on {limit.calibration_size:,} rows)"
