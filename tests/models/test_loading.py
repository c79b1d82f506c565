"""Building models by name, and loading checkpoints without running code from them."""

import ast
import os
import pickle
import random
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import oodles
from oodles.errors import ArgumentError, FileError
from oodles.models import build_model, load_checkpoint

# Factories --------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path, monkeypatch):
    (tmp_path / "my_nets_for_models.py").write_text(
        "from torch import nn\n"
        "def linear(width=3, *, classes=2):\n    return nn.Linear(width, classes)\n"
        "def nothing():\n    return None\n"
        "def remember(*given):\n    model = nn.Identity()\n    model.given = given\n    return model\n"
        "number = 5\n"
        "c_function = len\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # building a model adds the working directory to it
    return tmp_path


@pytest.mark.usefixtures("directory")
def test_factories_are_called_with_their_arguments():
    assert build_model("my_nets_for_models:linear").weight.shape == (2, 3)
    assert build_model("my_nets_for_models:linear(7, classes=4)").weight.shape == (4, 7)
    assert build_model("torch.nn:Linear(2, 3, bias=False)").bias is None


@pytest.mark.usefixtures("directory")
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
        ("my_nets_for_models:missing", "my_nets_for_models has no missing"),
        ("my_nets_for_models:number", "number cannot be called"),
        ("my_nets_for_models:linear(depth=3)", "unexpected keyword argument 'depth'"),
        ("my_nets_for_models:nothing()", "returned NoneType, not an nn.Module"),
        ("my_nets_for_models:len", "my_nets_for_models has no len"),
        ("my_nets_for_models:c_function(3)", "c_function cannot be called"),
    ],
)
def test_invalid_factories_are_refused(text, message):
    with pytest.raises(ArgumentError, match=message):
        build_model(text)


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    "text",
    [
        'os:system("touch trace")',
        'os:system("touch\\ttrace")',
        "os:abort",
        'posix:system("touch trace")',
        'subprocess:getoutput("touch trace")',
        'subprocess:run(["touch", "trace"])',
        "builtins:exec(\"open('trace', 'w')\")",
        'builtins:open("trace", "w")',
        'shutil:rmtree("here")',
        'os.path:os("x")',
        'concurrent.futures:ThreadPoolExecutor("x")',
    ],
)
def test_functions_of_python_itself_are_never_called(directory, text):
    (directory / "here").mkdir()
    with pytest.raises(ArgumentError, match="belongs to Python itself and has no networks"):
        build_model(text)
    assert not (directory / "trace").exists()
    assert (directory / "here").exists()


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    "value",
    [
        "'touch trace'",
        "'/etc/passwd'",
        "'../x'",
        "'a;b'",
        "''",
        "'-rf'",
        "b'abc'",
        "{'a': 1}",
        "[1, 'a b']",
        "{1}",
        "1j",
        "'a\\n'",
    ],
)
def test_arguments_are_numbers_and_plain_words(value):
    with pytest.raises(ArgumentError, match="arguments must be numbers, True, False, None or plain words"):
        build_model(f"my_nets_for_models:linear({value})")
    with pytest.raises(ArgumentError, match="plain words"):
        build_model(f"my_nets_for_models:linear(classes={value})")


@pytest.mark.usefixtures("directory")
def test_plain_words_and_lists_reach_the_factory():
    values = ("deconf", "resnet50.a1-in1k", [1, (2, None)], True, 1e-3)
    assert build_model(f"my_nets_for_models:remember{values}").given == values


def test_only_what_the_user_typed_is_imported_by_name():
    """No reader of files calls what imports by name; the commands give it their own arguments."""
    users = {"build_model": set(), "import_object": set(), "import_module_here": set(), "load_model": set()}
    source = Path(oodles.__file__).parent
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "id", getattr(called, "attr", None))
            if name in users:
                users[name].add(file.relative_to(source).as_posix())
    assert users["build_model"] == {"cli/options.py", "cli/train.py"}
    assert users["import_object"] == {"models/loading.py", "detectors/parsing.py"}
    assert users["import_module_here"] == {"records/calls.py", "cli/__init__.py"}
    assert all(file.startswith("cli/") for file in users["load_model"])


# Checkpoints ------------------------------------------------------------------------------------


def filled(value):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def containers():
    state = filled(7.0).state_dict()
    yield "plain", state
    for container in ("state_dict", "model_state_dict", "model", "net"):
        yield container, {container: state, "epoch": 3, "best": 0.9}
    yield "DataParallel", nn.DataParallel(filled(7.0)).state_dict()
    yield "nested twice", {"state_dict": {"model": {f"module.{key}": value for key, value in state.items()}}}


@pytest.mark.parametrize(("name", "content"), [pytest.param(*one, id=one[0]) for one in containers()])
@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_in_every_container_are_loaded(tmp_path, name, content, zipped):
    torch.save(content, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    model = filled(0.0)
    load_checkpoint(model, tmp_path / "c.pt")
    assert torch.equal(model.weight, torch.full((2, 3), 7.0))
    assert torch.equal(model.bias, torch.full((2,), 7.0))


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


class Payload:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_with_code_in_it_runs_nothing(tmp_path, zipped):
    trace = tmp_path / "trace"
    hostile = {**filled(1.0).state_dict(), "bomb": Payload(f"touch {trace}")}
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
def test_files_that_are_not_checkpoints_or_not_there_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"c{suffix}"
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not a checkpoint of plain tensors"):
        load_checkpoint(filled(0.0), path)
    path.unlink()
    with pytest.raises(FileError, match=rf"c\{suffix} does not exist"):
        load_checkpoint(filled(0.0), path)
    with pytest.raises(FileError):
        load_checkpoint(filled(0.0), tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_checkpoints_are_loaded_or_refused_with_a_file_error(tmp_path, zipped):
    path, rng = tmp_path / "c.pt", random.Random(0)
    torch.save(filled(1.0).state_dict(), path, _use_new_zipfile_serialization=zipped)
    intact = path.read_bytes()
    refused = 0
    for _ in range(150):
        content = bytearray(intact)
        for _ in range(rng.choice([1, 2, 8])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_checkpoint(filled(0.0), path)
        except FileError:
            refused += 1
    assert refused > 50
