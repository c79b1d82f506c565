"""The shipped network, exported with DICE and with the default: the guard's own answers on 2,000 real images."""

import json
import zipfile

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from support.networks import one_thread  # noqa: F401

import oodles as ood
from oodles.cli import app
from oodles.data.loaders import ImageLoader, normalise
from oodles.data.readers import open_images
from oodles.data.transforms import CIFAR
from oodles.models import load

pytestmark = [pytest.mark.slow, pytest.mark.realdata]


@pytest.fixture(scope="module")
def network():
    return load("cifar10-small")


@pytest.fixture(scope="module")
def sets(data, network):
    """Training, calibration and new rows, the last with their pixels: half CIFAR-10, half SVHN and Places."""
    jpeg = data / "cifar10-jpeg.zip"
    train = ood.extract(network, ImageLoader(open_images(jpeg / "train").sample(1200, 0), CIFAR))
    test = ImageLoader(open_images(jpeg / "test").sample(1600, 0), CIFAR, labels=False)
    pixels = torch.cat([part for part, _ in test.pixels()])
    pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))]
    for name in ("svhn/test_32x32.mat", "places365"):
        loader = ImageLoader(open_images(data / name).sample(500, 0), CIFAR, labels=False)
        pixels = torch.cat([pixels, *(part for part, _ in loader.pixels())])
    rows = ood.extract(network, normalise(CIFAR, pixels).split(100), labels=False)
    return train, rows[:600], rows[600:], pixels[600:].permute(0, 2, 3, 1).contiguous().numpy()


@pytest.mark.parametrize("spec", ["dice(0.9)", "default"])
@pytest.mark.filterwarnings("ignore::oodles.FitWarning")
def test_the_same_decisions_on_2000_real_images_and_one_score_for_a_photograph(network, sets, spec, tmp_path, capsys):
    train, calibration, new, pixels = sets
    detector = ood.parse(spec).fit(train)
    guard = ood.Guard(network, detector, ood.calibrate(detector.score(calibration)), preprocessing=CIFAR)
    some = normalise(CIFAR, torch.from_numpy(pixels[:64]).permute(0, 3, 1, 2))
    exported = guard.export(tmp_path / "guard.zip", inputs=[some])
    scores = detector.score(new)
    verdict = exported(pixels)
    assert len(pixels) == 2000
    assert np.array_equal(verdict.is_id, guard.threshold.is_id(scores).numpy())
    assert np.abs(verdict.score - scores.numpy()).max() <= 1e-5 * float(scores.abs().max())
    assert 0.9 < verdict.is_id[:1000].mean() < 1
    assert verdict.is_id[1000:].mean() < 0.9

    path = tmp_path / "photograph.jpg"
    Image.fromarray(load_sample_images().images[0]).save(path)
    photograph = np.asarray(Image.open(path))
    with zipfile.ZipFile(tmp_path / "guard.zip") as archive:
        session = onnxruntime.InferenceSession(archive.read("guard.onnx"))
    by_hand = session.run(["score"], {"pixels": photograph[None]})[0].item()
    eager = guard(normalise(CIFAR, torch.from_numpy(CIFAR(Image.open(path)))[None])).score.item()
    with pytest.raises(SystemExit):
        app(["score", str(tmp_path / "guard.zip"), str(path), "--json"])
    (printed,) = json.loads(capsys.readouterr().out)["verdicts"]
    found = [by_hand, exported(path).score.item(), exported(photograph).score.item(), printed["score"]]
    assert found == pytest.approx([eager] * 4, abs=1e-5)
