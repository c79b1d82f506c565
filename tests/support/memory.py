"""How much memory tensors take."""

from collections.abc import Callable
from itertools import accumulate

import torch


def peak_bytes(action: Callable[[], object]) -> int:
    """The most memory that tensors took at any one time while ``action`` ran, as PyTorch's profiler has it."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        action()
    results = profile.kineto_results
    assert results is not None
    changes = (event.nbytes() for event in results.events() if event.name() == "[memory]")
    return max(accumulate(changes), default=0)
