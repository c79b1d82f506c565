"""A stream of real images: nothing unusual until SVHN images are mixed in."""

import numpy as np
import pytest
from support.streams import said_of

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
    generator = np.random.default_rng(0)

    def scores(images, count):
        loader = ImageLoader(open_images(data / images).sample(count), CIFAR, labels=False)
        return detector.score(extract(network, loader)).double().numpy()

    order = generator.permutation(scores("cifar10-jpeg.zip/test", 1400))
    threshold, inputs = calibrate(order[:700]), order[700:]
    monitor = Monitor(threshold, rule=AlertRule(false_alarm_every=10_000, minimum=50))

    assert monitor.observe(**said_of(inputs[:500], threshold)) == []
    mixed = generator.permutation(np.concatenate([inputs[500:], scores("svhn/test_32x32.mat", 200)]))
    assert len(monitor.observe(**said_of(mixed, threshold))) == 1
    assert monitor.differs
