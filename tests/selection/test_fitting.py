"""``fit_and_calibrate`` refuses calibration sets that are unlike the training set, and accepts every honest one."""

import numpy as np
import pytest
import torch

from oodles.detectors import parse
from oodles.errors import DataError
from oodles.features import Features, Head
from oodles.selection.fitting import check_calibration, fit_and_calibrate
from oodles.testing import example_features

NETWORKS = [f"densenet_cifar{n}" for n in (10, 100)] + [f"lite{n}_imagenet" for n in range(3)] + ["small_cifar10"]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rows", [110, 1000])
def test_held_out_rows_of_real_networks_are_accepted(data, name, rows):
    arrays = np.load(data / "networks" / f"{name}.npz")
    head = Head(*(torch.from_numpy(arrays[key].astype(np.float32)) for key in "Wb"))
    generator = np.random.default_rng(0)
    train, held_out = (
        Features(torch.from_numpy(generator.permutation(arrays[key])[:count].astype(np.float32)), head=head)
        for key, count in (("train", rows), ("id_test", rows // 2))
    )
    check_calibration(train, held_out)
    check_calibration(Features(logits=train.logits), Features(logits=held_out.logits))
    with pytest.raises(DataError, match="unlike the training set"):
        check_calibration(train, Features(100 * held_out.embedding, head=head))


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize("spec", ["knn(1)", "mahalanobis", "gaussian_mixture", "vim", "energy", "msp", "default"])
def test_detectors_that_overfit_a_few_rows_are_calibrated(spec):
    rows = example_features(180, 100, 5)
    _, threshold = fit_and_calibrate(rows[:120], parse(spec), calibration=rows[120:])
    assert threshold.calibration_size == 60
    with pytest.raises(DataError, match=r"unlike the training set: on average 9.* preprocessed in the same way"):
        fit_and_calibrate(rows[:120], parse(spec), calibration=Features(255 * rows[120:].embedding, head=rows.head))


def test_training_rows_are_refused_in_any_order_unless_rows_repeat_by_nature():
    rows = example_features(300)
    for same in (rows, rows[torch.randperm(300)], rows[40:90]):
        with pytest.raises(DataError, match="has the same rows as the training set"):
            check_calibration(rows, same)
    few = Features(rows.embedding[:30].repeat(10, 1), head=rows.head)
    check_calibration(few[:200], few[200:])
