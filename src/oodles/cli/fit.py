"""``oodles fit``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from oodles.cli.checks import check_store
from oodles.cli.common import notice
from oodles.cli.options import CheckpointOption, complete_detector, load_model
from oodles.errors import ArgumentError, DataError


def fit(
    features: Annotated[Path, Argument(help="ID training features, made by oodles extract.")],
    out: Annotated[Path, Option(help="Folder for the fitted guard.", file_okay=False)],
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
    force: Annotated[bool, Option("--force", help="Replace the guard that is already in --out.")] = False,
    key: Annotated[Path | None, Option(help="File with a secret of at least 16 bytes to sign the guard with.")] = None,
    model: Annotated[
        str | None,
        Option(help="Your model.onnx or package.module:factory. The guard then keeps its answers to noise, as a test."),
    ] = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Fit a detector on ID features and set its threshold.

    torchrun --nproc-per-node N -m oodles fit ... divides the rows among N processes.

    Example: oodles fit features/train --calibration features/val --detector 'dice(0.7)' --out guard
    """
    from oodles.calibration import check_id_rate

    check_id_rate(id_rate)
    check_store(features)
    if calibration is not None:
        check_store(calibration)
    _check_out(out, force)

    from oodles.deploy.saving import save_guard
    from oodles.detectors import parse
    from oodles.distributed.processes import current
    from oodles.features import Features
    from oodles.guard import Guard
    from oodles.network.fingerprints import model_fingerprint
    from oodles.records.files import read_key
    from oodles.selection.fitting import fit_and_calibrate
    from oodles.store import read_manifest

    secret = read_key(key)
    chosen = None if detector is None else parse(detector)
    train = Features.load(features)
    held_out = None if calibration is None else Features.load(calibration)
    about = read_manifest(features)["about"]
    network = None if model is None else load_model(model, checkpoint)
    if network is not None and about.get("model") != model_fingerprint(network):
        raise DataError(f"{features} has features of another model than --model {model}; extract them from this one")
    if calibration is None:
        notice(
            "no --calibration: a fifth of the training rows sets the threshold; a network fits its training images "
            "better than new ones, so held-out images are the better choice"
        )
    else:
        rows = [[entry["sha256"] for entry in read_manifest(each)["shards"]] for each in (features, calibration)]
        if rows[0] == rows[1]:
            raise DataError(f"{calibration} has the same rows as {features}; calibrate on images that fit has not seen")
        if read_manifest(calibration)["about"].get("model") != about.get("model"):
            raise DataError(f"{calibration} has features of another model than {features}; use the same for both")
    fitted, threshold = fit_and_calibrate(train, chosen, calibration=held_out, id_rate=id_rate, processes=current())
    if current().rank:
        return
    options = {
        "head": about.get("head"),
        "preprocessing": about.get("preprocessing"),
        "multilabel": train.multilabel,
    }
    if network is None:
        save_guard(
            out, fitted, threshold, model=about.get("model"), class_names=train.class_names, key=secret, **options
        )
    else:
        Guard(network, fitted, threshold, classes=train.class_names or None, **options).save(out, key=secret)
    rule = f"accepted as ID if score >= {threshold.value:.7g} ({100 * id_rate:g} % of ID)"
    notice(f"{fitted.spec}: {rule}; saved in {out}")


def _check_out(out: Path, force: bool) -> None:
    """Raise if writing a guard to ``out`` would replace one without ``--force``, or mix with other files."""
    from oodles.deploy.artefact import RECORD, SAVED_KIND
    from oodles.records.files import check_output, record_kind

    check_output(out / RECORD, record_kind(SAVED_KIND))
    # hidden files are the lock and what a killed writer left
    found = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    other = [name for name in found if name != RECORD and not name.startswith("guard-")]
    if other:
        raise ArgumentError(f"--out {out} holds other files ({other[0]}, ...); give a new folder")
    if found and not force:
        raise ArgumentError(f"--out {out} already holds a guard; give another folder, or --force to replace it")
