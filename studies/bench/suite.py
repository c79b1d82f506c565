"""The whole benchmark from images, every detector on every OOD set: against one bare pass, and against pytorch-ood's.

Detectors that need further passes are left out there, since their cost is that of the passes; the paper's main table,
which has two of them, is compared with its passes alone. The network is the paper's DenseNet for CIFAR-10; the data is
expected in ``OODLES_DATA``, or ``../shared/data``.
"""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from oodles.bench.run import benchmark
from oodles.bench.sets import ID_SETS
from oodles.bench.suites import SUITES
from oodles.data.loaders import ImageLoader
from oodles.data.readers import ImageSet
from oodles.detectors import detector_list
from oodles.models import densenet101, load_checkpoint
from studies import DATA
from studies.bench.extraction import without_head
from studies.bench.peers import PEERS, Peer, pytorch_ood
from studies.bench.results import Row, cost, sides, speedup
from studies.timing import paired

IMAGES, QUICK_IMAGES, PEER_IMAGES, MAIN_IMAGES = 300, 40, 40, 100  # of each set
TRAIN_FACTOR = 3  # more training images: covariances of a few rows are of no use


def run(quick: bool = False) -> Iterator[Row]:
    """All detectors against a bare pass, again from the store, and the peers' harness."""
    data = DATA
    checkpoint = data / "checkpoints" / "densenet101-cifar10.pth.tar"
    if not checkpoint.is_file():
        print(f"{checkpoint} is not there: the suite is not timed")
        return
    network = densenet101(10)
    load_checkpoint(network, checkpoint)
    network.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few images: directions without variance, classes without rows
        yield from _whole(network, _sets(data, QUICK_IMAGES if quick else IMAGES), rounds=1 if quick else 2)
        if not quick:
            yield _main_table(network, _sets(data, MAIN_IMAGES))
            yield _beside_peer(network, _sets(data, PEER_IMAGES))


def _sets(data: Path, limit: int) -> dict[str, ImageSet]:
    record = SUITES["cifar10"]
    sizes = {"train": TRAIN_FACTOR * limit}
    return {name: part.sample(sizes.get(name, limit)) for name, part in record.open_sets(data).items()}


def _whole(network: nn.Module, sets: dict[str, ImageSet], rounds: int) -> Iterator[Row]:
    transform = SUITES["cifar10"].transform
    images = [_decoded(part, ood=True).tensors[0] for part in sets.values()]

    def bare() -> None:
        with torch.inference_mode():
            for batch in images:
                for part in torch.split(batch, 32):
                    network(part.contiguous(memory_format=torch.channels_last))

    detectors = detector_list()

    def whole(store: Path) -> None:
        benchmark(detectors, model=network, **_sides(sets), preprocessing=transform, store=store)

    with tempfile.TemporaryDirectory() as folder:
        network(images[0][:32])
        stores = [Path(folder) / str(number) for number in range(rounds)]
        new, stored = iter(stores), iter(stores)
        calls = {"whole": lambda: whole(next(new)), "bare": bare, "again": lambda: whole(next(stored))}
        times = paired(calls, budget=0, least=rounds, warm_up=False)
    count = sum(map(len, images))
    name = f"{len(detectors)} detectors x {len(sets) - 2} OOD sets, {count:,} images"
    yield cost(name, "one bare pass", sides(times, "whole", "bare"), target=1.15)
    yield cost(f"{name}, again from the store", "one bare pass", sides(times, "again", "bare"))


def _sides(sets: dict[str, ImageSet]) -> dict[str, Any]:
    """The sets as arguments of a benchmark."""
    ood = {name: part for name, part in sets.items() if name not in ID_SETS}
    return {"train": sets["train"], "test": sets["test"], "ood": ood}


def _main_table(network: nn.Module, sets: dict[str, ImageSet]) -> Row:
    """The paper's main table with ODIN's step and Mahalanobis over layers, which is tuned against adversarial copies.

    What it cannot do without: one pass over the training images, and for the rest a pass, the gradient and a pass after
    the step; for tuning a pass, the gradient that makes the copies, and a pass over these.
    """
    record = SUITES["cifar10"]
    batches = {name: torch.split(_decoded(part, ood=True).tensors[0], 32) for name, part in sets.items()}

    def passes() -> None:
        for name, parts in batches.items():
            for part in parts:
                images = part.contiguous(memory_format=torch.channels_last)
                leaf = images.clone().requires_grad_()
                torch.autograd.grad(network(leaf).log_softmax(dim=1).amax(dim=1).sum(), leaf)
                with torch.inference_mode():
                    for _ in range(3 if name == "train" else 1):
                        network(images)

    def table() -> None:
        benchmark(record.detectors, model=network, **_sides(sets), preprocessing=record.transform)

    times = paired({"table": table, "passes": passes}, budget=0, least=2, warm_up=False)
    name = f"the paper's main table with ODIN and Mahalanobis, {sum(len(part) for part in sets.values()):,} images"
    return cost(name, "its forward passes and gradients", times, target=1.15)


def _beside_peer(network: nn.Module, sets: dict[str, ImageSet]) -> Row:
    """The same detectors by both harnesses; pytorch-ood is given images that are decoded already."""
    transform = SUITES["cifar10"].transform
    harness = _harness({name: _decoded(part, name not in ID_SETS) for name, part in sets.items()})
    peers = [peer for peer in PEERS if peer.at != "inputs"]
    encoder = without_head(network, "fc")

    def ours() -> None:
        benchmark([peer.spec for peer in peers], model=network, **_sides(sets), preprocessing=transform)

    def theirs() -> None:
        detectors = [_connected(peer, network, encoder) for peer in peers]
        for detector in detectors:
            if detector.requires_fit:
                detector.fit(DataLoader(harness.train_set(), batch_size=128))
        harness.evaluate(detectors, loader_kwargs={"batch_size": 128})

    times = paired({"ours": ours, "peer": theirs}, budget=0, least=1, warm_up=False)
    count = sum(len(part) for part in sets.values())
    name = f"{len(peers)} detectors x {len(sets) - 2} OOD sets, {count:,} images"
    return speedup(name, "pytorch-ood's harness", times, target=10)


def _decoded(images: ImageSet, ood: bool) -> TensorDataset:
    """Images and labels in memory; the labels of OOD images are -1, as pytorch-ood expects."""
    parts = list(ImageLoader(images, SUITES["cifar10"].transform, labels=not ood))
    pixels = torch.cat([part if isinstance(part, Tensor) else part[0] for part in parts])
    labels = [torch.full((len(part),), -1) if isinstance(part, Tensor) else part[1] for part in parts]
    return TensorDataset(pixels, torch.cat(labels).long())


def _harness(sets: dict[str, TensorDataset]) -> Any:
    """A benchmark of pytorch-ood with these sets."""

    class Sets(pytorch_ood().benchmark.Benchmark):  # type: ignore[misc]
        ood_names = tuple(name for name in sets if name not in ID_SETS)

        def train_set(self) -> TensorDataset:
            return sets["train"]

        def test_sets(self, known: bool = True, unknown: bool = True) -> list[ConcatDataset[Any]]:
            return [ConcatDataset([sets["test"], sets[name]]) for name in self.ood_names]

    return Sets()


def _connected(peer: Peer, network: nn.Module, encoder: nn.Module) -> Any:
    """A peer's detector that runs the network itself."""
    head = network.get_submodule("fc")
    assert isinstance(head, nn.Linear)
    detector = peer.build(head)
    if peer.at == "logits":
        detector.model = network
    elif peer.at == "features":
        detector.encoder = encoder
    else:
        detector.backbone = nn.Sequential(encoder, nn.Unflatten(1, (head.in_features, 1, 1)))
    return detector
