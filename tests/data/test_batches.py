"""The first images of a loader; the formats of batches are tested through ``extract``."""

import pytest
import torch

from oodles.data.batches import first_images
from oodles.errors import DataError

IMAGES, LABELS = torch.arange(20.0).view(10, 2), torch.arange(10)


def pairs():
    return zip(IMAGES.split(4), LABELS.split(4), strict=True)


@pytest.mark.parametrize("count", [1, 4, 5, 10, 99])
def test_first_images_may_span_several_batches(count):
    images, labels = first_images(pairs(), count)
    assert torch.equal(images, IMAGES[:count])
    assert torch.equal(labels, LABELS[:count])


def test_first_images_reads_no_more_batches_than_it_needs():
    batches = iter(pairs())
    first_images(batches, 5)
    assert torch.equal(next(batches)[1], LABELS[8:])


def test_labels_are_given_only_if_wanted_and_known_for_every_batch():
    assert first_images(pairs(), 5, labelled=False)[1] is None
    assert first_images(IMAGES.split(4), 5)[1] is None
    assert first_images([(IMAGES[:4], LABELS[:4]), IMAGES[4:]], 5)[1] is None


def test_a_loader_without_batches_is_refused():
    with pytest.raises(DataError, match="the loader gave no batch"):
        first_images([], 5)
