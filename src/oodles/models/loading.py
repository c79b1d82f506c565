"""Build a model from ``package.module:factory``, and load a checkpoint without running code from it."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from oodles.errors import ArgumentError, FileError
from oodles.records.calls import import_object, read_call, read_expression
from oodles.records.text import one_line

CONTAINERS = ("state_dict", "model_state_dict", "model", "net")


def build_model(text: str) -> nn.Module:
    """Call the factory ``text`` names: ``package.module:factory`` or ``package.module:factory(num_classes=10)``.

    ``text`` is trusted as a Python script that one runs is: the module is imported, and the factory called. It must be
    what the user typed; nothing that oodles reads from a file or a request comes here. So that a text that looks like
    a model is not something else, the factory must not belong to Python itself, and its arguments are numbers, True,
    False, None, plain words such as ``"deconf"``, and lists of these.

    >>> type(build_model("oodles.models:densenet101(num_classes=100)")).__name__
    'DenseNet'
    """
    module_name, _, call = text.partition(":")
    try:
        name, positional, named = read_call(read_expression(call))
    except ValueError:
        form = "package.module:factory or package.module:factory(...)"
        raise ArgumentError(f"--model {text!r} is not of the form {form}; check the spelling") from None
    if not module_name or module_name.startswith("."):
        raise ArgumentError(f"--model {text!r} has no module before the colon; write package.module:factory")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise ArgumentError(f"--model {text!r}: {module_name} belongs to Python itself and has no networks")
    if not all(_is_plain(value) for value in (*positional, *named.values())):
        raise ArgumentError(
            f"--model {text!r}: arguments must be numbers, True, False, None or plain words; for others write a "
            "function of your own that calls the factory, and name that"
        )
    factory = import_object(module_name, name)
    if not callable(factory) or isinstance(factory, BuiltinFunctionType):
        raise ArgumentError(f"--model {text}: {name} cannot be called")
    try:
        model = factory(*positional, **named)
    except (Exception, SystemExit) as error:  # the user's own code
        raise ArgumentError(f"--model {text}: {one_line(error, kind=True)}") from error
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"--model {text} returned {type(model).__name__}, not an nn.Module")
    return model


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[A-Za-z0-9_][\w.-]*", value, re.ASCII) is not None
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float)


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Load a state dict into ``model``: ``.safetensors``, or a torch file read with ``weights_only=True``.

    The usual containers (``state_dict``, ``model``, ...) are unwrapped and a ``module.`` prefix is dropped.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"state_dict": {"module.weight": torch.ones(1, 2)}}, file.name)
    ...     load_checkpoint(model := nn.Linear(2, 1, bias=False), file.name)
    >>> model.weight.tolist()
    [[1.0, 1.0]]
    """
    state = _read_state(Path(path))
    for container in CONTAINERS:
        inner = state.get(container)
        if isinstance(inner, Mapping):
            state = inner
    wanted = model.state_dict()
    tensors = {
        key if key in wanted else key.removeprefix("module."): value
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }
    missing = [key for key in wanted if key not in tensors]
    extra = [key for key in tensors if key not in wanted]
    mismatched = [
        f"{key} is {tuple(tensors[key].shape)}, the model has {tuple(wanted[key].shape)}"
        for key in wanted
        if key in tensors and tensors[key].shape != wanted[key].shape
    ]
    problems = [
        *([f"{len(missing)} missing (first {missing[0]})"] if missing else []),
        *([f"{len(extra)} unknown (first {extra[0]})"] if extra else []),
        *mismatched[:1],
    ]
    if problems:
        raise FileError(f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}")
    model.load_state_dict(tensors)


def _read_state(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        fact = "is a folder, not a state dict" if path.exists() else "does not exist"
        raise FileError(f"{path} {fact}; give a file that torch.save or safetensors wrote")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FileError(
            f"{path} is not a checkpoint of plain tensors, or damaged ({type(error).__name__}); save "
            "model.state_dict() alone"
        ) from None
    if not isinstance(content, Mapping):
        raise FileError(f"{path} holds {type(content).__name__}, not a state dict; save model.state_dict()")
    return content
