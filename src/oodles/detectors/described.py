"""Modules that know their constructor's arguments and declare what they learn: what saving, text and views rely on."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from typing_extensions import override

from oodles.records.calls import write_call


class Learned(nn.Module):
    """A module with learned buffers: every annotation ``name_: Tensor`` declares one, which is None until learned."""

    def __init__(self) -> None:
        super().__init__()
        for kind in reversed(type(self).__mro__):
            for name in inspect.get_annotations(kind):
                if name.endswith("_") and not name.startswith("_"):
                    self.register_buffer(name, None)

    @override
    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            if buffer is None and prefix + name in state_dict:
                self._buffers[name] = torch.empty_like(state_dict[prefix + name])
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Described(Learned):
    """A module that knows its constructor's arguments: constructors take keywords and store them as given.

    ``name`` is what the registry calls the class in text; it is not inherited.
    """

    name: ClassVar[str] = ""

    @classmethod
    def text_name(cls) -> str:
        """The name of the class in text: the one it is registered under, else ``package.module:Class``."""
        return cls.__dict__.get("name") or f"{cls.__module__}:{cls.__qualname__}"

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, in its order."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @property
    def spec(self) -> str:
        """The object in one line that :func:`oodles.parse` reads: its name, and arguments that are not defaults."""
        defaults = {name: parameter.default for name, parameter in inspect.signature(type(self)).parameters.items()}
        changed = {name: value for name, value in self.text_arguments().items() if value != defaults[name]}
        return write_call(self.text_name(), changed)

    def text_arguments(self) -> dict[str, Any]:
        """The arguments as they are written in text."""
        return self.arguments()

    def extra_repr(self) -> str:
        """The arguments that are set, as written in a call."""
        given = self.arguments().items()
        shown = {name: value for name, value in given if value is not None and (not isinstance(value, tuple) or value)}
        return ", ".join(f"{name}={written(value)}" for name, value in shown.items())

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def __repr__(self) -> str:
        seen = getattr(self, "shape_", None)  # of a fitted detector; a stage of a chain has none
        return str(self) if seen is None else f"<{self}, fitted on (width, classes) {tuple(seen.tolist())}>"


def class_key(kind: type) -> str:
    """The name of a class in files: its own name for one of ours, ``package.module:Class`` for a user's."""
    ours = kind.__module__.partition(".")[0] == "oodles"
    return kind.__name__ if ours else f"{kind.__module__}:{kind.__qualname__}"


def describe(value: Any) -> Any:
    """Class and every argument, recursively: equal exactly for detectors that may be merged."""
    if isinstance(value, Described):
        arguments = {name: describe(argument) for name, argument in value.arguments().items()}
        return {"class": class_key(type(value)), "arguments": arguments}
    if isinstance(value, list | tuple):
        return [describe(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def written(value: Any) -> str:
    """An argument as it is written in a call; of a fitted detector only the call, not what it was fitted on."""
    if isinstance(value, tuple):
        inside = [str(each) if isinstance(each, Described) else repr(each) for each in value]
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
    return str(getattr(value, "__name__", value))
