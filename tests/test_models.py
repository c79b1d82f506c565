"""The networks of the house, and loading anybody's by name from files that cannot run code."""

import os
import pickle
import random
import sys
import warnings
from types import ModuleType

import networks
import pytest
import torch
from networks import one_thread, seeded  # noqa: F401
from safetensors.torch import save_file
from torch import nn

from oodles.bench import suite
from oodles.bench.datasets import CIFAR, ImageLoader, read_cifar
from oodles.errors import ArgumentError, FileError
from oodles.extraction import extract
from oodles.models import DenseNet, build_model, densenet101, load_checkpoint, resnet50


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


# DenseNet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "count"), [(10, 769_162), (100, 800_032)])
def test_densenet101_is_the_papers(classes, count):
    model = densenet101(classes)
    assert parameters(model) == count
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


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_authors_checkpoints_load_whole(data, name, classes):
    model = densenet101(classes)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    load_checkpoint(model, data / "checkpoints" / f"densenet101-{name}.pth.tar")
    changed = [key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])]
    assert len(changed) == len(before), "every tensor came from the file"


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "folder", "lowest"),
    [("cifar10", "cifar-10-batches-py/test_batch", 0.88), ("cifar100", "cifar-100-python/test", 0.6)],
)
def test_the_authors_networks_know_their_images(data, name, folder, lowest):
    model = densenet101(int(name.removeprefix("cifar")))
    load_checkpoint(model, data / "checkpoints" / f"densenet101-{name}.pth.tar")
    images = read_cifar(data / folder).sample(200)
    features = extract(model, ImageLoader(images, CIFAR))
    assert len(features) == 200
    accuracy = float((features.logits.argmax(dim=1) == features.labels).double().mean())
    assert lowest < accuracy < 1
    assert features.width == 342


# ResNet -----------------------------------------------------------------------------------------


def test_resnet50_without_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    for build in (resnet50, lambda: build_model(suite("imagenet").model)):
        with pytest.raises(ArgumentError, match="pip install torchvision") as caught:
            build()
        assert "\n" not in str(caught.value)


def test_resnet50_is_torchvisions_own_without_weights(monkeypatch):
    calls = []

    def build(**options):
        calls.append(options)
        return nn.Linear(2048, options["num_classes"])

    stand_in = ModuleType("torchvision.models")
    stand_in.resnet50 = build
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", stand_in)
    assert build_model(suite("imagenet").model).out_features == suite("imagenet").classes
    assert resnet50(7).out_features == 7
    assert calls == [{"weights": None, "num_classes": 1000}, {"weights": None, "num_classes": 7}]


# Factories --------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own to work in, with a module that nobody else has."""
    (tmp_path / "my_nets_for_models.py").write_text(
        "from torch import nn\n"
        "def linear(width=3, *, classes=2):\n    return nn.Linear(width, classes)\n"
        "def nothing():\n    return None\n"
        "number = 5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # building a model puts the folder on it
    return tmp_path


@pytest.mark.usefixtures("here")
def test_factories_are_called_with_their_arguments():
    assert build_model("my_nets_for_models:linear").weight.shape == (2, 3)
    assert build_model("my_nets_for_models:linear(7, classes=4)").weight.shape == (4, 7)
    assert build_model("torch.nn:Linear(2, 3, bias=False)").bias is None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not of the form"),
        ("my_nets_for_models", "is not of the form"),
        ("my_nets_for_models:", "is not of the form"),
        ("my_nets_for_models:linear(", "is not of the form"),
        ("my_nets_for_models:linear(width=open('x'))", "is not of the form"),
        ("my_nets_for_models:linear().bias", "is not of the form"),
        ("my_nets_for_models:a.b()", "is not of the form"),
        (":linear", ":linear"),
        (".nets:linear", "nets:linear"),
        ("no_such_module_anywhere:f", "cannot be imported"),
        ("my_nets_for_models:missing", "has no missing to call"),
        ("my_nets_for_models:number", "has no number to call"),
        ("my_nets_for_models:linear(depth=3)", "unexpected keyword argument 'depth'"),
        ("my_nets_for_models:nothing()", "gave NoneType, not an nn.Module"),
    ],
)
def test_what_is_no_factory_is_refused(text, message):
    with pytest.raises(ArgumentError, match=message):
        build_model(text)


# Checkpoints ------------------------------------------------------------------------------------


def filled(value):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def wrappings():
    state = filled(7.0).state_dict()
    yield "plain", state
    for nest in ("state_dict", "model_state_dict", "model", "net"):
        yield nest, {nest: state, "epoch": 3, "best": 0.9}
    yield "DataParallel", nn.DataParallel(filled(7.0)).state_dict()
    yield "nested twice", {"state_dict": {"model": {f"module.{key}": value for key, value in state.items()}}}


@pytest.mark.parametrize(("name", "content"), [pytest.param(*one, id=one[0]) for one in wrappings()])
@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_in_every_wrapping(tmp_path, name, content, zipped):
    torch.save(content, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    model = filled(0.0)
    load_checkpoint(model, tmp_path / "c.pt")
    assert torch.equal(model.weight, torch.full((2, 3), 7.0))
    assert torch.equal(model.bias, torch.full((2,), 7.0))


def test_safetensors_checkpoints(tmp_path):
    save_file(filled(7.0).state_dict(), tmp_path / "c.safetensors")
    model = filled(0.0)
    load_checkpoint(model, tmp_path / "c.safetensors")
    assert torch.equal(model.weight, torch.full((2, 3), 7.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nn.Linear(3, 5).state_dict(), r"weight is \(5, 3\), the model has \(2, 3\)"),
        ({"weight": torch.ones(2, 3)}, r"1 missing \(first bias\)"),
        ({**filled(1.0).state_dict(), "extra": torch.ones(1)}, r"1 unknown \(first extra\)"),
        ({}, r"2 missing \(first weight\)"),
        ({"epoch": 3}, r"2 missing"),
        ([1, 2, 3], "holds list, not a state dict"),
        (torch.ones(3), "holds Tensor, not a state dict"),
        ({0: torch.ones(2, 3), 1: torch.ones(2)}, r"c\.pt"),
    ],
)
def test_checkpoints_that_do_not_fit_leave_the_model_alone(tmp_path, content, message):
    torch.save(content, tmp_path / "c.pt")
    model = filled(3.0)
    with pytest.raises(FileError, match=message):
        load_checkpoint(model, tmp_path / "c.pt")
    assert torch.equal(model.weight, torch.full((2, 3), 3.0))
    assert torch.equal(model.bias, torch.full((2,), 3.0))


class Bomb:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_with_code_in_it_runs_nothing(tmp_path, zipped):
    trace = tmp_path / "trace"
    hostile = {**filled(1.0).state_dict(), "bomb": Bomb(f"touch {trace}")}
    torch.save(hostile, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(hostile["bomb"], protocol=2))
    torch.save(filled(1.0), tmp_path / "whole_model.pt")
    for name in ("c", "raw", "whole_model"):
        with pytest.raises(FileError, match=rf"{name}\.pt is not a checkpoint of plain tensors") as caught:
            load_checkpoint(filled(0.0), tmp_path / f"{name}.pt")
        assert "\n" not in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 64, b"PK\x03\x04 not really a zip"])
def test_files_that_are_no_checkpoints(tmp_path, suffix, content):
    path = tmp_path / f"c{suffix}"
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not a checkpoint of plain tensors"):
        load_checkpoint(filled(0.0), path)


def test_a_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match=r"nowhere\.pt does not exist"):
        load_checkpoint(filled(0.0), tmp_path / "nowhere.pt")
    with pytest.raises(FileError):
        load_checkpoint(filled(0.0), tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_checkpoints_load_or_are_refused_and_nothing_else(tmp_path, zipped):
    path, draw = tmp_path / "c.pt", random.Random(0)  # noqa: S311
    torch.save(filled(1.0).state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    refused = 0
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 2, 8])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_checkpoint(filled(0.0), path)
        except FileError:
            refused += 1
    assert refused > 50
