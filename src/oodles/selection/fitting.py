"""Fit a detector and set its threshold, from ID features alone."""

from collections.abc import Callable

from oodles.calibration import Threshold, calibrate, check_id_rate
from oodles.detectors import Detector, default_detector
from oodles.detectors.network_detector import is_tuned
from oodles.distributed.fitting import fit
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError
from oodles.features import Features


def fit_and_calibrate(
    train: Features,
    detector: Detector | None = None,
    *,
    calibration: Features | Callable[[Detector], Features] | None = None,
    id_rate: float = 0.95,
    processes: Processes | None = None,
) -> tuple[Detector, Threshold]:
    """Fit ``detector``, or the default for these features, and calibrate its threshold on ID rows it has not seen.

    ``calibration`` holds those rows, or is a function that returns them for the fitted detector, which it may tune
    first. Without it, a fifth of ``train`` is left out of the fit. Every process of ``processes`` makes this call with
    all features, and gets the same answer.

    >>> from oodles.testing import example_features
    >>> detector, threshold = fit_and_calibrate(example_features(), id_rate=0.9)
    >>> detector.spec, threshold.calibration_size
    ('default', 60)
    """
    check_id_rate(id_rate)
    held_out: Features | Callable[[Detector], Features]
    train, held_out = train.split() if calibration is None else (train, calibration)
    chosen = default_detector(train) if detector is None else detector
    fitted = chosen.fit(train) if processes is None else fit(chosen, train, processes)
    if callable(held_out):
        held_out = held_out(fitted)
    if not is_tuned(fitted):
        raise ArgumentError(
            f"{fitted.spec} has to be tuned with the network; use Guard.fit(model, ..., calibration=images) in Python"
        )
    return fitted, calibrate(fitted.score(held_out), id_rate)
