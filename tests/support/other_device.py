"""A second device on a machine that has none: its data are in ordinary memory, its rules are those of a GPU.

Inside ``with other_device():`` a tensor moves to it by ``tensor.to(OTHER)`` and back by ``.cpu()``. An operation on it
and an ordinary tensor together raises the error that CUDA raises, and ``.numpy()`` is refused. As on CUDA, a
zero-dimensional ordinary tensor may join arithmetic entry by entry, an ordinary tensor may be an index, and ``copy_``
goes from anywhere to anywhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten

OTHER = torch.device("mps", 0)  # a name that torch takes without looking for the hardware
LABELS = (OTHER.type, "meta")  # torch's C++ code sees a device without data, which it leaves to the class below

ANY_DEVICE = {aten.copy_.default, aten._to_copy.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class OtherTensor(Tensor):
    """A tensor on the other device; ``plain`` are its data."""

    plain: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: OTHER)
    is_meta = property(lambda self: False)

    @staticmethod
    def __new__(cls, plain: Tensor) -> "OtherTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            plain.size(),
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device="meta",
        )
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {OTHER} device type tensor to numpy. Use Tensor.cpu() to copy it first")

    def __getitem__(self, index: Any) -> Tensor:
        # torch would make a list an index tensor without asking the device
        return super().__getitem__(torch.as_tensor(index) if isinstance(index, list) else index)

    def tolist(self) -> Any:
        return self.plain.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"other({self.plain!r})"


@contextmanager
def other_device() -> Iterator[None]:
    """Make ``OTHER`` usable; a module moved to it gets new parameters, as the old ones cannot take its data."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Dispatch():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


class _Dispatch(TorchDispatchMode):
    """Sees every operation, so also those that create tensors on the other device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not types and kwargs.get("device") is None:  # only ordinary tensors
            return func(*args, **kwargs)
        return run(func, args, kwargs)


def run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute one operation on the plain data; the result is where the arguments are, or where it is asked for."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = any(isinstance(each, OtherTensor) for each in tensors)
    _check_devices(func, args, tensors)
    plain_args, plain_kwargs = tree_map_only(OtherTensor, lambda each: each.plain, (args, dict(kwargs)))
    wanted = kwargs.get("device")
    if wanted is not None:
        there = torch.device(wanted).type in LABELS
        plain_kwargs["device"] = "cpu"
    if there and kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a '{OTHER.type}' device type for generator but found 'cpu'")
    result = func(*plain_args, **plain_kwargs)
    if _writes(func):
        return kwargs.get("out", args[0])
    return tree_map_only(Tensor, OtherTensor, result) if there else result


def _check_devices(func: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    if any(each.device.type == "meta" for each in tensors):
        raise RuntimeError(f"{func} was given a tensor without data, which this device cannot fill")
    ordinary = [each for each in tensors if not isinstance(each, OtherTensor)]
    if len(ordinary) in (0, len(tensors)) or func in ANY_DEVICE:
        return
    if func in INDEXING and isinstance(args[0], OtherTensor):
        indices = tree_leaves(args[1])
        ordinary = [each for each in ordinary if each.ndim and not any(each is index for index in indices)]
    elif torch.Tag.pointwise in func.tags and not (_writes(func) and args[0] is ordinary[0]):
        ordinary = [each for each in ordinary if each.ndim]
    if ordinary:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {OTHER} and cpu! ({func})"
        )


def _writes(func: Any) -> bool:
    """Whether the result is one of the arguments, written to."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(alias is not None and alias.is_write for alias in aliases)
