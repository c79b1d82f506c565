"""``extract`` compared with the best hand-tuned loop and with pytorch-ood's, on three networks and on JPEG files."""

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import IMAGENET
from oodles.models import densenet101
from oodles.network.extraction import extract
from studies.bench.peers import pytorch_ood
from studies.bench.results import Row, cost, sides, speedup
from studies.sources import resnet50, write_jpegs
from studies.timing import Times, fastest, paired, seconds

OF_BEST = round(1 / 0.95, 3)  # 95 % of the images per second of the best loop
TUNED = [(layout, size) for layout in (torch.channels_last, torch.contiguous_format) for size in (8, 16, 32)]


@dataclass(frozen=True)
class Network:
    """A network with random weights, its head, and how many images of which size it is given."""

    name: str
    make: Callable[[], nn.Module]
    head: str
    images: int
    pixels: int
    loader_batches: tuple[int, ...]
    peer_target: float


def vit_small() -> nn.Module:
    """ViT-S/16 for images of 224 x 224 pixels."""
    from torchvision.models import VisionTransformer

    model: nn.Module = VisionTransformer(224, 16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536)
    return model


NETWORKS = (
    Network("DenseNet-101", lambda: densenet101(10), "fc", 192, 32, (32, 128), 2.0),
    Network("ResNet-50", resnet50, "fc", 48, 224, (8, 32), 1.0),
    Network("ViT-S/16", vit_small, "heads.head", 48, 224, (8, 32), 1.0),
)


def run(quick: bool = False) -> Iterator[Row]:
    """Each network with each size of the loader's batches, then JPEG files."""
    for network in NETWORKS[:1] if quick else NETWORKS:
        yield from _network(network, rounds=1 if quick else 3)
    if not quick:
        yield from _jpeg()


def _network(network: Network, rounds: int) -> Iterator[Row]:
    """The first batch, in which the head is found, and the rest, which is what counts for many images."""
    torch.manual_seed(0)
    model = network.make().eval()
    images = torch.randn(network.images, 3, network.pixels, network.pixels)
    encoder = without_head(model, network.head)
    best = _fastest(model, network.head, images[: network.images // 3])
    for size in network.loader_batches:
        loader = [(part, torch.zeros(len(part), dtype=torch.long)) for part in torch.split(images, size)]
        first, rest = images[:size], images[size:]
        times: Times = {"first": [], "rest": [], "best first": [], "best rest": [], "peer": []}
        for _ in range(rounds):
            for name, taken in zip(("first", "rest"), _extracting(model, loader), strict=True):
                times[name].append(taken)
            times["best rest"].append(seconds(_hand_tuned(model, network.head, rest, *best)))
            times["best first"].append(seconds(_hand_tuned(model, network.head, first, *best)))
            times["peer"].append(seconds(partial(pytorch_ood().utils.extract_features, loader[1:], encoder, "cpu")))
        loop = f"the best loop ({_label(*best)})"
        name = f"{network.name}, {len(rest)} images after the first batch of {size}"
        yield cost(name, loop, sides(times, "rest", "best rest"), target=OF_BEST)
        yield speedup(name, "pytorch-ood's loop", sides(times, "rest", "peer"), target=network.peer_target)
        yield cost(f"{network.name}, the first batch of {size}", loop, sides(times, "first", "best first"))


def _extracting(model: nn.Module, loader: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Seconds until the second batch is asked for, and from then on."""
    asked = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in loader:
            asked.append(time.perf_counter())
            yield batch

    extract(model, batches(), progress=False)
    return asked[1] - asked[0], time.perf_counter() - asked[1]


def _fastest(model: nn.Module, head: str, images: Tensor) -> tuple[torch.memory_format, int]:
    """The layout and the number of images at a time of the fastest loop."""
    taken = {tuned: fastest(_hand_tuned(model, head, images, *tuned), repeats=2) for tuned in TUNED}
    return min(taken, key=lambda tuned: taken[tuned])


def _hand_tuned(
    model: nn.Module, head: str, images: Tensor, layout: torch.memory_format, size: int
) -> Callable[[], object]:
    """A loop that keeps embedding and logits, without any check."""

    def loop() -> tuple[Tensor, Tensor]:
        embeddings: list[Tensor] = []
        keep = model.get_submodule(head).register_forward_pre_hook(lambda _, inputs: embeddings.append(inputs[0]))
        with torch.inference_mode():
            logits = [model(part.contiguous(memory_format=layout)) for part in torch.split(images, size)]
        keep.remove()
        return torch.cat(embeddings), torch.cat(logits)

    return loop


def _label(layout: torch.memory_format, size: int) -> str:
    return f"{'channels-last' if layout == torch.channels_last else 'NCHW'}, {size} at a time"


def without_head(model: nn.Module, head: str) -> nn.Module:
    """A copy whose output is the embedding."""
    encoder = copy.deepcopy(model)
    parent, _, name = head.rpartition(".")
    setattr(encoder.get_submodule(parent), name, nn.Identity())
    return encoder


def _jpeg(count: int = 512) -> Iterator[Row]:
    """JPEG files through a small network, so that decoding is the limit."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    from torchvision.models import mobilenet_v3_small

    model = mobilenet_v3_small().eval()
    encoder = without_head(model, "classifier.3")
    usual = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        write_jpegs(Path(folder) / "class", count)
        dataset = ImageFolder(folder, usual)

        def ours(**options: Any) -> object:
            loader = ImageLoader(open_images(Path(folder)), IMAGENET, labels=False)
            return extract(model, loader, labels=False, progress=False, **options)

        def hand_tuned() -> None:
            with torch.inference_mode():
                for images, _ in DataLoader(dataset, batch_size=32, num_workers=torch.get_num_threads()):
                    model(images.contiguous(memory_format=torch.channels_last))

        def peer() -> object:
            return pytorch_ood().utils.extract_features(DataLoader(dataset, batch_size=128), encoder, "cpu")

        def decoding() -> None:
            for _ in ImageLoader(open_images(Path(folder)), IMAGENET, labels=False):
                pass

        times = paired({"ours": ours, "tuned": hand_tuned, "peer": peer, "decoding": decoding}, budget=10.0)
    name = f"MobileNetV3-S, {count} JPEG files of 500 x 375"
    yield cost(name, "a loop with a worker per core", sides(times, "ours", "tuned"), target=OF_BEST)
    yield speedup(name, "pytorch-ood's loop", sides(times, "ours", "peer"), target=1)
    yield cost(name, "decoding alone", sides(times, "ours", "decoding"))
