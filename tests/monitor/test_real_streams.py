"""A stream of real images: nothing unusual until SVHN images are mixed in."""

import numpy as np
import pytest

from oodles.calibration import calibrate
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.deploy.saving import load_guard
from oodles.models import load
from oodles.models.shipped import GUARD, shipped_folder
from oodles.monitor import AlertRule, Monitor
from oodles.network.extraction import extract

NAME = "cifar10-small"


@pytest.mark.slow
@pytest.mark.realdata
def test_svhn_among_cifar_is_found_and_cifar_alone_is_not(data):
    network, detector = load(NAME), load_guard(shipped_folder(NAME) / GUARD)[0]
    sets = {
        "id": open_images(data / "cifar10-jpeg.zip" / "test"),
        "svhn": open_images(data / "svhn" / "test_32x32.mat"),
    }
    scores = {
        name: detector.score(extract(network, ImageLoader(images.sample(count), CIFAR, labels=False))).double().numpy()
        for (name, images), count in zip(sets.items(), (1400, 200), strict=True)
    }
    generator = np.random.default_rng(0)
    order = generator.permutation(scores["id"])
    threshold, inputs = calibrate(order[:700]), order[700:]
    monitor = Monitor(threshold, rule=AlertRule(false_alarm_every=10_000, minimum=50))

    def observe(stream):
        labels = np.zeros(len(stream), dtype=int)
        values = {"p_value": threshold.p_values(stream), "is_id": threshold.is_id(stream)}
        return monitor.observe(score=stream, label=labels, **values)

    assert observe(inputs[:500]) == []
    mixed = generator.permutation(np.concatenate([inputs[500:], scores["svhn"]]))
    assert len(observe(mixed)) == 1
    assert monitor.differs
