"""Models of Lightning, timm and torchvision: features and guards are those of the model by hand."""

import pytest
import torch
from support import torchvision_operators  # noqa: F401 - before anything that imports torchvision
from support.networks import CLASSES, Body, one_thread, pictures, seeded  # noqa: F401
from support.snapshots import portrait
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from oodles.errors import HeadError
from oodles.guard import Guard
from oodles.network.extraction import extract
from oodles.network.taps import eval_mode

IMAGES = pictures(6, size=32)


def verdict_is_the_models_own(model, images, spec="dice(0.5)"):
    train = pictures(120, seed=1, size=images.shape[-1])
    guard = Guard.fit(model, [train[:60], train[60:]], detector=spec)
    verdict = guard(images)
    with eval_mode(model):
        assert torch.equal(verdict.logits, model(images)), "bit for bit"
    torch.testing.assert_close(verdict.score, guard.detector.score(extract(model, [images])), rtol=1e-4, atol=1e-4)


# Lightning --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning.pytorch")


def module(lightning):
    """A classifier as a Lightning user writes one."""

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            self.backbone = Body()
            self.head = nn.Linear(8, CLASSES)

        def forward(self, images):
            return self.head(self.backbone.pooled(images))

        def training_step(self, batch, _):
            images, labels = batch
            return F.cross_entropy(self(images), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return seeded(Classifier)


def test_a_lightning_module(lightning):
    model, labels = module(lightning), torch.arange(6) % CLASSES
    before = portrait(model)
    loader = DataLoader(TensorDataset(IMAGES, labels), batch_size=4)
    features = extract(model, loader)
    assert {**portrait(model), "random": None} == {**before, "random": None}, "a DataLoader draws a random number"
    with eval_mode(model):
        embedding = model.backbone.pooled(IMAGES)
        torch.testing.assert_close(features.embedding, embedding, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(features.logits, model(IMAGES), rtol=1e-5, atol=1e-6)
    assert torch.equal(features.labels, labels)
    assert torch.equal(features.head.weight, model.head.weight)
    verdict_is_the_models_own(model, pictures(6))


def test_a_guard_inside_a_lightning_module(lightning):
    """Parameters are neither replaced nor frozen, so that training can go on."""
    model = module(lightning)
    guard = Guard.fit(model, [pictures(120)], detector="energy")
    model.train()
    loss = model.training_step((pictures(4), torch.arange(4)), 0)
    loss.backward()
    assert model.head.weight.grad is not None
    assert torch.isfinite(guard(pictures(4)).score).all()


# timm -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10t", {}),
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 1}),
        ("mobilenetv3_small_050", {}),
        ("swin_tiny_patch4_window7_224", {"img_size": 32, "window_size": 2, "depths": (1, 1, 1, 1), "embed_dim": 24}),
    ],
)
def test_a_timm_model(name, options):
    timm = pytest.importorskip("timm")
    model = seeded(lambda: timm.create_model(name, num_classes=CLASSES, **options))
    features = extract(model, [IMAGES])
    with eval_mode(model):
        embedding = model.forward_head(model.forward_features(IMAGES), pre_logits=True)
        torch.testing.assert_close(features.embedding, embedding, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(features.logits, model(IMAGES), rtol=1e-4, atol=1e-5)
    assert torch.equal(features.head.weight, model.get_classifier().weight.flatten(1))


def test_a_timm_model_with_two_heads():
    timm = pytest.importorskip("timm")
    options = {"img_size": 32, "depth": 1, "num_classes": CLASSES}
    model = seeded(lambda: timm.create_model("deit_tiny_distilled_patch16_224", **options))
    features = extract(model, [IMAGES])
    with eval_mode(model):
        tokens = model.forward_features(IMAGES)
        torch.testing.assert_close(features.embedding, torch.cat([tokens[:, 0], tokens[:, 1]], dim=1))
        torch.testing.assert_close(features.logits, model(IMAGES))
    assert torch.equal(features.head.weight, torch.cat([model.head.weight, model.head_dist.weight], dim=1) / 2)


# torchvision ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zoo():
    return pytest.importorskip("torchvision").models


def test_a_torchvision_model(zoo):
    model = seeded(lambda: zoo.ResNet(zoo.resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES))
    features = extract(model, [IMAGES])
    with eval_mode(model):
        body = nn.Sequential(*list(model.children())[:-1], nn.Flatten())
        torch.testing.assert_close(features.embedding, body(IMAGES), rtol=1e-4, atol=1e-5)
    assert torch.equal(features.head.weight, model.fc.weight)
    verdict_is_the_models_own(model, IMAGES)


@pytest.mark.parametrize("size", [32, 64])
def test_squeezenet_is_refused_by_its_kind(zoo, size):
    model = seeded(lambda: zoo.squeezenet1_1(num_classes=CLASSES))
    message = r"SqueezeNet has a ReLU between its last convolution and its logits \(classifier\.1\): .*head=False keeps"
    with pytest.raises(HeadError, match=message):
        extract(model, [pictures(3, size=size)])


def test_a_segmentation_network_is_refused_by_its_kind(zoo):
    options = {"weights": None, "weights_backbone": None, "num_classes": CLASSES}
    model = seeded(lambda: zoo.segmentation.lraspp_mobilenet_v3_large(**options))
    with pytest.raises(HeadError, match=r"\(4, 5, 32, 32\), one prediction per pixel, as in segmentation"):
        extract(model, [IMAGES])


def test_a_network_for_videos(zoo):
    model = seeded(lambda: zoo.video.r3d_18(num_classes=CLASSES))
    videos = torch.randn(2, 3, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    features = extract(model, [videos])
    with eval_mode(model):
        torch.testing.assert_close(features.logits, model(videos), rtol=1e-4, atol=1e-5)
    assert torch.equal(features.head.weight, model.fc.weight)
