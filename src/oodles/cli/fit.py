"""``oodles fit``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from oodles.cli import common
from oodles.cli.checks import (
    DETECTOR_RECORD,
    GUARD_RECORD,
    check_checkpoints,
    check_id_rate,
    check_out,
    check_store,
)
from oodles.cli.common import load_model, notice
from oodles.cli.completion import complete_detector
from oodles.errors import ArgumentError, DataError

STEMS = ("guard-", "detector-")  # of the tensor files that belong to a guard or a detector


def fit(
    features: Annotated[Path, Argument(help="ID training features, made by oodles extract.")],
    out: Annotated[Path, Option("--out", help="Folder for the fitted guard.")],
    detector: Annotated[
        str | None,
        Option(
            help="Stages joined by +, e.g. 'react(90)+dice(0.7)+energy', a name that `oodles detectors` lists, or your "
            "own package.module:Class.",
            autocompletion=complete_detector,
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        Option(help="ID features not used in training, for the threshold. Default: a fifth of the training rows."),
    ] = None,
    id_rate: Annotated[float, Option(help="Fraction of ID inputs that should be accepted.")] = 0.95,
    outlier_rows: Annotated[
        str,
        Option(help="Training rows with norms of more than 100 times the median: warn, drop, raise or ignore."),
    ] = "warn",
    force: Annotated[bool, Option("--force", help="Replace the guard that is already in --out.")] = False,
    key: Annotated[Path | None, Option(help="File with a secret of at least 16 bytes to sign the guard with.")] = None,
    model: Annotated[
        str | None,
        Option(help="Your classifier, package.module:factory. The guard then keeps its answers to noise, as a test."),
    ] = None,
    checkpoint: common.CheckpointOption = None,
) -> None:
    """Fit a detector on ID features and set its threshold.

    torchrun --nproc-per-node N -m oodles fit ... divides the rows among N processes.

    Example: oodles fit features/train --calibration features/val --detector 'dice(0.7)' --out guard
    """
    check_id_rate(id_rate)
    check_store(features)
    if calibration is not None:
        check_store(calibration)
    _check_out(out, force)
    check_checkpoints([checkpoint])

    from oodles.calibration import calibrate
    from oodles.deploy.saving import save_guard
    from oodles.detectors import default_detector, parse
    from oodles.detectors.base import learned_columns
    from oodles.detectors.network_detector import is_tuned
    from oodles.distributed.fitting import fit as fit_together
    from oodles.distributed.fitting import screen_together
    from oodles.distributed.processes import current
    from oodles.features import MIN_TO_SPLIT, Features
    from oodles.guard import Guard
    from oodles.network.fingerprints import is_fingerprint_of
    from oodles.records.files import read_key
    from oodles.store import read_manifest

    secret = read_key(key)
    fitted = default_detector() if detector is None else parse(detector)
    train = screen_together(Features.load(features), learned_columns([fitted]), outlier_rows, current())
    about = read_manifest(features)["about"]
    network = None if model is None else load_model(model, checkpoint)
    if network is not None and not is_fingerprint_of(about.get("model", ""), network):
        raise DataError(f"{features} has features of another model than --model {model}; extract them from this one")
    if calibration is None and len(train) < MIN_TO_SPLIT:
        raise DataError(
            f"{features} has too few rows ({len(train)}) to set some aside for the threshold; give --calibration"
        )
    if calibration is None:
        train, held_out = train.split()
        notice(
            f"threshold from {len(held_out)} training rows that are left out of the fit; a network fits its training "
            "images better than new ones, so --calibration is the better choice"
        )
    else:
        held_out = Features.load(calibration)
        rows = [[entry["sha256"] for entry in read_manifest(each)["shards"]] for each in (features, calibration)]
        if rows[0] == rows[1]:
            raise DataError(f"{calibration} has the same rows as {features}; calibrate on images that fit has not seen")
        if read_manifest(calibration)["about"].get("model") != about.get("model"):
            raise DataError(f"{calibration} has features of another model than {features}; use the same for both")
    fitted = fit_together(fitted, train, current(), outlier_rows="ignore")
    if not is_tuned(fitted):
        raise ArgumentError(
            f"{fitted.spec} has to be tuned on held-out images, which fit does not do; use oodles.selection.tune in "
            "Python"
        )
    if current().rank:
        return
    threshold = calibrate(fitted.score(held_out), id_rate)
    origin = about.get("model"), about.get("head"), about.get("preprocessing")
    if network is None:
        save_guard(out, fitted, threshold, *origin, train.class_names, key=secret)
    else:
        names = train.class_names or None
        guard = Guard(network, fitted, threshold, head=origin[1], preprocessing=origin[2], classes=names)
        guard.save(out, key=secret)
    rule = f"accepted as ID if score >= {threshold.value:.7g} ({100 * id_rate:g} % of ID)"
    notice(f"{fitted.spec}: {rule}; saved in {out}")


def _check_out(out: Path, force: bool) -> None:
    """Raise if writing a guard to ``out`` would replace one without ``--force``, or mix with other files."""
    check_out(out)
    # hidden files are the lock and what a killed writer left
    found = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    other = [name for name in found if name not in (DETECTOR_RECORD, GUARD_RECORD) and not name.startswith(STEMS)]
    if other:
        raise ArgumentError(f"--out {out} holds other files ({other[0]}, ...); give a new folder")
    if found and not force:
        raise ArgumentError(f"--out {out} already holds a guard; give another folder, or --force to replace it")
