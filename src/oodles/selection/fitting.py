"""Fit a detector and set its threshold, from ID features alone."""

import warnings
from collections.abc import Callable

import torch

from oodles.calibration import Threshold, calibrate, check_id_rate, p_values
from oodles.detectors import Detector, default_detector
from oodles.detectors.network_detector import is_tuned
from oodles.detectors.statistics import row_keys
from oodles.detectors.support import Support
from oodles.distributed.fitting import fit
from oodles.distributed.processes import Processes
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import MIN_TO_SPLIT, Features

MAX_ROWS = 2000  # of either set that are compared
MIN_AGAIN = 5  # training rows in the calibration set; fewer may be chance
MIN_RANK = 0.05  # mean rank of calibration scores among held-out training scores; 0.38 or more on honest sets


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
    scores = fitted.score(held_out)
    if calibration is not None:
        check_calibration(train, held_out)
    return fitted, calibrate(scores, id_rate)


def check_calibration(train: Features, calibration: Features) -> None:
    """Raise if the calibration rows are training rows, or nearly all of them are unlike the training rows.

    The default detector, fitted on one half of a sample of the training rows, scores the other half and the calibration
    rows. Neither has influenced the fit, so their ranks agree, however few rows there are, unless the data differs.
    """
    generator = torch.Generator().manual_seed(0)
    known, new = (
        each.gather(torch.randperm(len(each), generator=generator)[:MAX_ROWS].sort().values)
        for each in (train, calibration)
    )
    keys, others = (row_keys(each.embedding if each.holds("embedding") else each.logits) for each in (known, new))
    again = int(torch.isin(keys, others).sum())
    # inputs of a few discrete values repeat within the training rows as often as between the two
    repeated = 2 * (len(keys) - len(set(keys.tolist()))) >= again
    if again >= MIN_AGAIN and not repeated and again > len(keys) * len(others) / len(train) / 2:
        raise DataError("the calibration set has the same rows as the training set; give inputs that fit has not seen")
    if len(known) < MIN_TO_SPLIT:
        return
    half, rest = known.split(0.5)
    reference = default_detector(known) if known.holds("logits") else Support()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            reference.fit(half)
    except DataError:  # rows that it cannot learn from, such as equal ones
        return
    rank = float(p_values(reference.score(new), reference.score(rest)).mean())
    if rank < MIN_RANK:
        raise DataError(
            f"the calibration set is unlike the training set: on average {1 - rank:.1%} of training rows look more "
            "in-distribution than a calibration row; give ID inputs that are preprocessed in the same way (range of "
            "pixels, mean, std, size)"
        )
