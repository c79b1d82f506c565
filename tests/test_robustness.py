"""Ways of using the pieces together that each piece alone does not show."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.bench.datasets import CIFAR, ImageLoader, open_images
from oodles.calibration import calibrate
from oodles.cli.work import _remembered
from oodles.detectors import DICE, MSP, Energy
from oodles.errors import ArgumentError, DataError, FileError, HeadError
from oodles.extraction import extract
from oodles.features import Features, Head
from oodles.guard import Guard, read_guard


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


def pictures(rows: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def guarded(model: nn.Module, **options: object) -> Guard:
    features = extract(model, [pictures(100)])
    detector = DICE(p=0.5).fit(features)
    return Guard(model, detector, calibrate(detector.score(features)), **options)


# Precision, threads, folders ------------------------------------------------------------------------


def test_a_guard_moves_to_another_precision_whole() -> None:
    guard = guarded(network())
    plain = guard(pictures(9)).score
    wide = copy.deepcopy(guard).double()(pictures(9).double()).score
    assert wide.dtype == torch.float64
    np.testing.assert_allclose(wide, plain, rtol=1e-4)


def test_autocast_does_not_reach_the_scores() -> None:
    # half-precision kernels are not there on every processor, so the model is one that needs none
    class Sums(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.sum(dim=3).flatten(1)

    class Watched(MSP):
        def forward(self, embedding: Tensor, logits: Tensor) -> Tensor:
            assert not torch.is_autocast_enabled("cpu")
            return super().forward(embedding, logits)

    features = extract(Sums(), [pictures(40)], layer=False)
    guard = Guard(Sums(), Watched(), calibrate(MSP().score(features)), layer=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        verdict = guard(pictures(40))
    assert torch.equal(verdict.score, MSP().score(features))


def test_threads_may_share_a_guard_from_its_first_call() -> None:
    want = [guarded(network())(pictures(4, seed)).score for seed in range(24)]
    guard = guarded(network(), layer="4")
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda seed: guard(pictures(4, seed)).score, range(24)))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_threshold_is_not_read_back_with_another_detector(tmp_path: Path) -> None:
    guarded(network()).save(tmp_path / "g")
    other = DICE(p=0.9).fit(extract(network(), [pictures(60)]))
    other.save(tmp_path / "g")
    with pytest.raises(FileError, match="another detector than its threshold was set for"):
        read_guard(tmp_path / "g")


def test_a_guard_needs_something_to_look_at() -> None:
    guard = guarded(network())
    with pytest.raises(DataError, match="no image"):
        guard(pictures(4)[:0])
    with pytest.raises(ArgumentError, match="layer=False"):
        Guard(network(), guard.detector, guard.threshold, layer=False)


def test_a_detector_fitted_in_one_go_takes_no_more_batches() -> None:
    features = extract(network(), [pictures(40)])
    with pytest.raises(ArgumentError, match="kept nothing to add to"):
        DICE().fit(features).partial_fit(features)
    assert torch.equal(DICE().fit(features[:9]).fit(features).weight_, DICE().fit(features).weight_)


def test_a_detector_with_nothing_to_learn_reads_nothing(tmp_path: Path) -> None:
    extract(network(), [pictures(40)]).save(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    MSP().fit(Features.load(tmp_path / "s"))
    with pytest.raises(FileError, match="altered"):
        DICE().fit(Features.load(tmp_path / "s"))


# Heads ----------------------------------------------------------------------------------------------


class Written(nn.Module):
    """One linear head, written in several legal ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, images: Tensor) -> Tensor:
        h = images.mean(dim=(2, 3))
        match self.how:
            case "mm with mat2=":
                return torch.mm(h, mat2=self.weight.T)
            case "addmm by name":
                return torch.addmm(self.bias, mat1=h, mat2=self.weight.T)
            case "a vector product beside it":
                return F.linear(h, self.weight) + torch.ones(3) @ self.weight.T
            case "roots of pixels":
                return F.linear((images**0.45).mean(dim=(2, 3)), self.weight, self.bias)
            case "cosine, scaled before":
                return F.linear(10 * F.normalize(h), F.normalize(self.weight))
        return F.linear(F.normalize(h), 10 * F.normalize(self.weight))


@pytest.mark.parametrize("how", ["mm with mat2=", "addmm by name", "a vector product beside it", "roots of pixels"])
def test_a_head_is_found_however_it_is_written(how: str) -> None:
    model, images = Written(how), pictures(12).abs()
    features = extract(model, [images])
    assert features.head is not None
    np.testing.assert_allclose(features.head(features.embedding), model(images).detach(), atol=1e-5)


@pytest.mark.parametrize("how", ["cosine, scaled before", "cosine, weights scaled"])
def test_a_cosine_head_is_refused_wherever_its_scale_stands(how: str) -> None:
    with pytest.raises(HeadError, match="cosine"):
        extract(Written(how), [pictures(12)])


def test_images_of_the_wrong_size_are_named() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    with pytest.raises(DataError, match=r"does not take inputs of shape \(3, 8, 8\)"):
        extract(flat, [pictures(4)])


def test_a_loader_without_a_length_is_a_loader() -> None:
    class Stream(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(pictures(10))

    assert len(extract(network(), torch.utils.data.DataLoader(Stream(), batch_size=4))) == 10


# Features and images --------------------------------------------------------------------------------


def test_features_take_arrays_and_columns_that_share_memory(tmp_path: Path) -> None:
    embedding = np.random.default_rng(0).random((5, 3), dtype=np.float32)
    features = Features(embedding, head=Head(torch.eye(3)))
    assert torch.equal(Energy().score(features), torch.logsumexp(torch.from_numpy(embedding), dim=1))
    shared = torch.from_numpy(embedding)
    Features(shared, head=Head(torch.eye(3)), layers={"same": shared}).save(tmp_path / "s")
    assert torch.equal(Features.load(tmp_path / "s").layers["same"], shared)


def paint(path: Path, size: tuple[int, int] = (40, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)


def test_hidden_folders_are_no_classes_and_linked_ones_are(tmp_path: Path) -> None:
    paint(tmp_path / "set" / ".ipynb_checkpoints" / "a.png")
    paint(tmp_path / "set" / "cat" / "b.png")
    paint(tmp_path / "elsewhere" / "c.png")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "elsewhere")
    images = open_images(tmp_path / "set")
    assert images.classes == ("cat", "dog")
    assert list(images.names) == ["cat/b.png", "dog/c.png"]


def test_a_picture_too_thin_to_resize_is_named_and_not_made(tmp_path: Path) -> None:
    paint(tmp_path / "thin.png", (1, 60_000))
    loader = ImageLoader(open_images(tmp_path), CIFAR)
    with pytest.raises(DataError, match=r"thin\.png: 1 x 60000 pixels would become"):
        list(loader)


def test_a_guard_remembers_how_images_were_prepared() -> None:
    prepared = json.loads(json.dumps({"size": 32, "resize": 32, "mean": CIFAR.mean, "std": CIFAR.std}))
    home = Path("guard")
    assert _remembered(prepared, None, None, None, None, home) == CIFAR
    assert _remembered(None, 64, None, None, None, home).size == 64
    with pytest.raises(ArgumentError, match="prepared otherwise"):
        _remembered(prepared, 224, None, None, None, home)
