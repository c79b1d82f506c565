"""Observing a model's forward pass without changing the model.

:func:`eval_mode` puts the model in eval mode and restores it, :class:`Recorder` records every linear operation of a
pass, and :class:`Tap` returns the inputs of chosen linear operations. Hooks are removed when their ``with`` block ends,
whatever happens inside.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from oodles.errors import ArgumentError, HeadError
from oodles.network.linear_operations import NON_AFFINE, operands
from oodles.network.reductions import Layer, read_layer
from oodles.records.text import one_line

Arguments = tuple[Any, ...]
Named = dict[str, Any]


@dataclass(frozen=True, eq=False)
class LinearCall:
    """One linear operation seen in a pass: ``output = input @ weight.T + bias``."""

    ordinal: int
    operation: str
    module: str
    input_is_modules: bool
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    output: Tensor

    @property
    def name(self) -> str:
        """The module that it happened in, or the operation if that was outside of any."""
        return self.module or self.operation

    def __str__(self) -> str:
        classes, width = self.weight.shape
        return f"{self.module or 'a functional call'} ({self.operation}, {width} -> {classes})"


@dataclass(frozen=True)
class TapPoint:
    """Where to find a linear operation again: at a module's input, or as the n-th linear operation of the pass."""

    module: str | None
    ordinal: int


@dataclass
class _Borrowed:
    """A module that some calls keep in eval mode: how many, the flag to restore, and the device to move back to."""

    training: bool
    users: int = 0
    home: torch.device | None = None


_borrowed: dict[nn.Module, _Borrowed] = {}
_borrowing = RLock()  # held while modes change, not while a model runs; garbage collection may end a call within


@contextmanager
def eval_mode(model: nn.Module, device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Eval mode, no gradients, on ``device``; training flags and device are restored afterwards.

    Yields the device the model runs on. Parameters are never replaced, so optimisers stay valid. Several threads may
    use one model, or models that share modules: each module is restored when its last user leaves.
    """
    modules = list(model.modules())
    with _borrowing:
        for module in modules:
            _borrowed.setdefault(module, _Borrowed(module.training)).users += 1
    try:
        with _borrowing:
            _to_eval(model)
            target = _move(model, device)
        with torch.no_grad():
            yield target
    finally:
        with _borrowing:
            for module in modules:
                _give_back(module)


def needs_eval(modules: Sequence[nn.Module]) -> bool:
    """Whether a module is in training mode, or may be as soon as a call in another thread ends.

    The order matters: flags are restored before a module ceases to be borrowed.
    """
    return bool(_borrowed and not _borrowed.keys().isdisjoint(modules)) or any(module.training for module in modules)


def _move(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move the model to ``device``, unless its parts are on several; returns where it runs."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    original = next(iter(devices), torch.device("cpu"))
    target = original if device is None else usable_device(device)
    if target != original and len(devices) == 1:
        network = unwrap(model)
        entry = _borrowed[network]
        if entry.users > 1:
            raise ArgumentError(
                f"{type(network).__name__} is in use on {original}, so it cannot be moved to {target}; wait for the "
                "other call, or use the same device"
            )
        entry.home = original
        model.to(target)
    return target


def _give_back(module: nn.Module) -> None:
    entry = _borrowed[module]
    entry.users -= 1
    if not entry.users:
        if entry.home is not None:
            module.to(entry.home)
        module.training = entry.training
        del _borrowed[module]


def _to_eval(model: nn.Module) -> None:
    name = type(model).__name__
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise HeadError(f"{name} is on the meta device, so it has no weights; load them first")
    try:
        model.eval()
    except NotImplementedError:
        raise HeadError(f"{name} cannot be put in eval mode; pass the nn.Module that it was exported from") from None


def usable_device(name: torch.device | str) -> torch.device:
    """The device of that name, if numbers can be kept on it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ArgumentError(f"device={str(name)!r} cannot be used here ({one_line(error)})") from None
    if device.type == "meta":
        raise ArgumentError("device='meta' holds no numbers: a model that is moved there loses its weights")
    return device


def check_model(model: object) -> None:
    """Raise unless ``model`` is a network; the error says what to give in its place."""
    if isinstance(model, nn.Module):
        return
    parts = [name for name in ("module_", "model") if isinstance(getattr(model, name, None), nn.Module)]
    if parts:  # of skorch, fastai, transformers' pipelines
        remedy = f"give the network inside it, which is its .{parts[0]}"
    elif isinstance(model, str | Path | Mapping):
        remedy = "build the network, load its weights, and give the network; or the path of an ONNX file, in .onnx"
    elif isinstance(model, type):
        remedy = f"give an instance of it, {model.__name__}(...)"
    else:
        remedy = "for any other model, fit a detector on its numbers: KNN().fit(Features(embedding, logits=logits))"
    shown = repr(model) if isinstance(model, str | Path) else f"a {type(model).__name__}"
    raise ArgumentError(f"the model is {shown}, not a torch.nn.Module; {remedy}")


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside DistributedDataParallel, DataParallel and ``torch.compile`` wrappers."""
    check_model(model)
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def has_convolutions(model: nn.Module) -> bool:
    """Whether the model contains a 2-D convolution, and so takes images ``(n, c, h, w)``."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


class Recorder(TorchFunctionMode):
    """Records every linear operation of a forward pass, and the module it happened in.

    ``shift`` maps ordinals to vectors that are added to the inputs of those operations: the response of the logits
    shows whether anything but this operation is applied to the embedding.
    """

    def __init__(self, model: nn.Module, shift: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()
        self.calls: list[LinearCall] = []
        self.non_affine: str | None = None  # what was applied after the last linear operation, as far as it is known
        self._model = model
        self._shift = shift or {}
        self._stack: list[tuple[str, object]] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Recorder":
        for name, module in self._model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # what happens inside cannot be observed
            enter, leave = _in_this_thread(partial(self._enter_module, name)), _in_this_thread(self._leave_module)
            self._hooks.append(module.register_forward_pre_hook(enter))
            self._hooks.append(module.register_forward_hook(leave, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        # the input of a module that runs several times would be that of its last run
        runs = Counter(call.module for call in self.calls)
        self.calls = [replace(call, input_is_modules=False) if runs[call.module] > 1 else call for call in self.calls]

    def _enter_module(self, name: str, arguments: Arguments) -> None:
        self._stack.append((name, arguments[0] if arguments else None))

    def _leave_module(self, *_: object) -> None:
        if self._stack:
            self._stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Named | None = None) -> Any:
        kwargs = kwargs or {}
        if func in NON_AFFINE:
            self.non_affine = NON_AFFINE[func]
        found = operands(func, args, kwargs)
        if found is None:
            return func(*args, **kwargs)
        operation, position, layer_input, weight, bias = found
        ordinal, self.non_affine = len(self.calls), None
        if ordinal in self._shift:
            moved = layer_input + broadcast_units(self._shift[ordinal], layer_input).to(layer_input.dtype)
            if position < len(args):
                args = (*args[:position], moved, *args[position + 1 :])
            else:
                kwargs = {key: moved if value is layer_input else value for key, value in kwargs.items()}
        output = func(*args, **kwargs)
        module, modules_input = self._stack[-1] if self._stack else ("", None)
        # later operations may write into the output in place
        copies = layer_input.clone(), weight, bias, output.clone()
        self.calls.append(LinearCall(ordinal, operation, module, modules_input is layer_input, *copies))
        return output


class Tap:
    """Runs a model and keeps the inputs of chosen linear operations, and the outputs of chosen layers.

    Heads that are modules are read with a hook; only functional ones need a function mode. Several threads may run one
    model at the same time: each records only its own pass.
    """

    def __init__(self, model: nn.Module, points: Sequence[TapPoint], layers: Sequence[str] = ()) -> None:
        modules = dict(model.named_modules())
        self._model = model
        self._points = {point: None if point.module is None else modules[point.module] for point in points}
        self._functional = {point.ordinal: point for point in points if point.module is None}
        read = [read_layer(name, modules, type(model).__name__) for name in layers]
        self._layers = {layer: modules[layer.module] for layer in read}

    def __call__(self, call: Callable[[nn.Module], Any]) -> tuple[object, list[Tensor], dict[str, Tensor]]:
        """The model's output, the inputs at the tap points in order, what is kept of the layers by name.

        ``call`` calls the model, as :class:`oodles.data.inputs.Inputs` do.
        """
        caught: dict[TapPoint, Tensor] = {}
        activations: dict[str, Tensor] = {}
        hooks: list[RemovableHandle] = []
        try:
            for point, module in self._points.items():
                if module is not None:
                    hooks.append(module.register_forward_pre_hook(_in_this_thread(partial(_catch, caught, point))))
            for layer, module in self._layers.items():
                hooks.append(module.register_forward_hook(_in_this_thread(partial(_reduce, activations, layer))))
            with _Catcher(self._functional, caught) if self._functional else nullcontext():
                output = call(self._model)
        finally:
            for hook in hooks:
                hook.remove()
        missing = [point for point in self._points if point not in caught]
        if missing:
            raise HeadError(f"the last layer ({missing[0].module or 'functional'}) did not run for this batch")
        unused = [layer for layer in self._layers if layer.name not in activations]
        if unused:
            raise HeadError(f"layer {unused[0].module} did not run for this batch, so it has no activation to keep")
        return output, [caught[point] for point in self._points], activations


def _catch(caught: dict[TapPoint, Tensor], point: TapPoint, arguments: Arguments) -> None:
    caught[point] = arguments[0]


def _reduce(activations: dict[str, Tensor], layer: Layer, _: Arguments, output: object) -> None:
    activations[layer.name] = layer(output)


def _in_this_thread(keep: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that passes what a module is given, and its output, to ``keep``, if it runs in this thread."""
    thread = get_ident()

    def hook(_: nn.Module, *seen: Any) -> None:
        if get_ident() == thread:
            keep(*seen)

    return hook


class _Catcher(TorchFunctionMode):
    """Keeps the inputs of linear operations by their position in the pass."""

    def __init__(self, points: Mapping[int, TapPoint], caught: dict[TapPoint, Tensor]) -> None:
        super().__init__()
        self._points = points
        self._caught = caught
        self._seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Named | None = None) -> Any:
        kwargs = kwargs or {}
        found = operands(func, args, kwargs)
        if found is not None:
            point = self._points.get(self._seen)
            if point is not None:
                self._caught[point] = found[2]
            self._seen += 1
        return func(*args, **kwargs)


def broadcast_units(vector: Tensor, layer_input: Tensor) -> Tensor:
    """A vector with one value per unit, reshaped so that it can be added to every row of a linear operation's input."""
    if layer_input.ndim >= 4:
        whole = vector.numel() == layer_input[0].numel()
        return vector.view(1, *layer_input.shape[1:]) if whole else vector.view(1, -1, *(1,) * (layer_input.ndim - 2))
    return vector
