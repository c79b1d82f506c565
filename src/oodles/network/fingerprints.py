"""What a model is recognised by: the SHA-256 of its structure, hyperparameters, weights and buffers."""

import hashlib
import re

import torch
from torch import Tensor, nn

from oodles.columns import fingerprint
from oodles.network.taps import unwrap

COPIES = (torch.float16, torch.bfloat16)  # the precisions in which a copy of a model is still that model
VOLATILE = re.compile(r"\b0x[0-9a-fA-F]+|\b\d{9,}\b")  # addresses and identities, which differ between processes


def model_fingerprint(model: nn.Module, *, dtype: torch.dtype | None = None, hyperparameters: bool = True) -> str:
    """SHA-256 of a network: the types, names and hyperparameters of its modules, its weights and its buffers.

    Hyperparameters are what a module's ``extra_repr`` shows, such as the size of a pooling window or the epsilon of a
    batch normalisation. With ``dtype`` it is the fingerprint of a copy in that precision.
    """
    network = unwrap(model)
    structure = "\n".join(
        f"{name} {type(module).__qualname__}" + (_hyperparameters(module) if hyperparameters else "")
        for name, module in network.named_modules()
    )
    tensors = {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    if dtype is not None:
        tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    return hashlib.sha256((structure + fingerprint(tensors)).encode()).hexdigest()


def _hyperparameters(module: nn.Module) -> str:
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return ""  # they show device and precision, and their tensors are part of the fingerprint
    try:
        return f" ({VOLATILE.sub('', module.extra_repr())})"
    except Exception:  # a user's code, which is of no use here if it fails
        return ""
