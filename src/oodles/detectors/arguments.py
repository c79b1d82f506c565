"""Modules that know their constructor's arguments: checked, stored, written as text and shown in notebooks."""

import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from oodles.errors import ArgumentError
from oodles.records.calls import write_call
from oodles.records.html import html_table

MAX_COUNT = 10**9  # larger counts of rows, classes or neighbours are mistakes
MAX_SHOWN = 20  # learned tensors that a notebook shows


class Learned(nn.Module):
    """A module with learned buffers: every annotation ``name_: Tensor`` declares one, which is None until learned."""

    def __init__(self) -> None:
        super().__init__()
        for kind in reversed(type(self).__mro__):
            for name in inspect.get_annotations(kind):
                if name.endswith("_") and not name.startswith("_"):
                    self.register_buffer(name, None)

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers, but never to half precision: a guard of a network in half precision scores in float32."""

        def at_least_single(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.is_floating_point() and moved.itemsize < 4 else moved

        return super()._apply(at_least_single, recurse)  # type: ignore[no-untyped-call,no-any-return]

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
        given = {name: _with_specs(value) for name, value in self.arguments().items()}
        return write_call(self.text_name(), {name: value for name, value in given.items() if value != defaults[name]})

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


def _with_specs(value: Any) -> Any:
    """Return an argument with the text of each detector in its place."""
    if isinstance(value, tuple):
        return tuple(map(_with_specs, value))
    return value.spec if isinstance(value, Described) else value


def written(value: Any) -> str:
    """An argument as it is written in a call; of a fitted detector only the call, not what it was fitted on."""
    if isinstance(value, tuple):
        inside = [str(each) if isinstance(each, Described) else repr(each) for each in value]
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
    return str(getattr(value, "__name__", value))


def check_whole(name: str, value: Any, low: int, high: int = MAX_COUNT) -> int:
    """The value, if it is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not low <= value <= high:
        raise ArgumentError(f"{name}={shown(value)} must be a whole number from {low:,} to {high:,}")
    return cast(int, value)


def check_positive(name: str, value: Any, low: float = 1e-6, high: float = 1e6) -> float:
    """The value, if it is a positive number from ``low`` to ``high``, so that single precision can divide by it."""
    number = cast(float, value)
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= number <= high:
        raise ArgumentError(f"{name}={shown(value)} must be positive: a number from {low:g} to {high:g}")
    return number


def shown(value: Any) -> str:
    """A value in a message, shortened."""
    try:
        return repr(value)[:40]
    except ValueError:  # Python refuses to write whole numbers of thousands of digits
        return "(a number of thousands of digits)"


def as_html(detector: Any) -> str:
    """Two columns: arguments with their values, learned tensors with their shapes; everything is escaped."""
    learned = [
        (name, f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")
        for name, tensor in detector.named_buffers()
    ]
    given = [(name, written(value)) for name, value in detector.arguments().items()]
    state = "nothing to fit" if not detector.learns_from else "fitted" if detector.fitted else "not fitted"
    if len(learned) > MAX_SHOWN:
        learned = [*learned[:MAX_SHOWN], (f"and {len(learned) - MAX_SHOWN} more", "")]
    groups: dict[str, list[tuple[str, str]]] = {"argument": given, "learned": learned}
    rows = [row for kind, pairs in groups.items() if pairs for row in (kind, *pairs)]
    return html_table(str(detector), rows, more=f": {state}")
