"""DenseNet-BC, and the checkpoints of the paper's authors."""

import pytest
import torch
from support import networks
from support.networks import one_thread, seeded  # noqa: F401
from torch import nn

from oodles.data.loaders import ImageLoader
from oodles.data.readers import read_cifar
from oodles.data.transforms import CIFAR
from oodles.models import DenseNet, densenet101, load_checkpoint
from oodles.network.extraction import extract


@pytest.mark.parametrize(("classes", "count"), [(10, 769_162), (100, 800_032)])
def test_densenet101_is_the_papers(classes, count):
    model = densenet101(classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.fc.in_features == 342
    assert model.fc.out_features == classes
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == 100


def test_a_small_densenet_runs_and_its_embedding_is_not_negative():
    model = seeded(lambda: DenseNet(7, depth=10, growth=4))
    features = extract(model, [networks.pictures(3, size=32)])
    assert features.logits.shape == (3, 7)
    assert features.embedding.shape == (3, model.fc.in_features)
    assert float(features.embedding.min()) >= 0
    assert torch.equal(features.head.weight, model.fc.weight)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "folder", "lowest"),
    [("cifar10", "cifar-10-batches-py/test_batch", 0.88), ("cifar100", "cifar-100-python/test", 0.6)],
)
def test_the_authors_networks_classify_their_test_images(data, name, folder, lowest):
    model = densenet101(int(name.removeprefix("cifar")))
    load_checkpoint(model, data / "checkpoints" / f"densenet101-{name}.pth.tar")
    images = read_cifar(data / folder).sample(200)
    features = extract(model, ImageLoader(images, CIFAR))
    assert len(features) == 200
    accuracy = float((features.logits.argmax(dim=1) == features.labels).double().mean())
    assert lowest < accuracy < 1
    assert features.width == 342
