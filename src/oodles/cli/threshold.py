"""``oodles threshold``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli.checks import check_guard, check_store
from oodles.cli.common import say
from oodles.cli.options import KeyOption
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from oodles.calibration import Threshold


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
    check_guard(guard)
    if features is not None:
        check_store(features)

    from oodles.calibration import calibrate, check_id_rate

    if id_rate is not None:
        check_id_rate(id_rate)

    from oodles.deploy.opening import open_guard

    opened = open_guard(guard, key=key)
    old = opened.threshold
    if features is None:
        scores, origin = old.id_scores, "scores of the calibration set"
    else:
        scores, origin = opened.score_features(features), f"rows of {features}"
    if scores is None:
        raise ArgumentError(f"{guard} keeps no scores of its calibration set; give ID features with --features")
    new = calibrate(scores, old.id_rate if id_rate is None else id_rate)
    opened.save_threshold(new)
    before, after = (float(each.is_id(scores).mean()) for each in (old, new))
    say(f"old threshold  {_describe(old)}")
    say(f"new threshold  {_describe(new)}")
    say(f"accepted       {after:.2%} of the {len(scores):,} {origin}, {before:.2%} before")


def _describe(limit: "Threshold") -> str:
    return f"{limit.value:.7g} ({100 * limit.id_rate:g} % of ID, set on {limit.calibration_size:,} rows)"
