"""``open_guard``: a saved guard or an exported one, which are used alike."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from oodles.deploy.artefact import is_exported
from oodles.deploy.exported import ExportedGuard
from oodles.errors import ArgumentError
from oodles.records.files import Key

if TYPE_CHECKING:  # an exported guard is opened without torch
    from torch import nn

    from oodles.deploy.saved import SavedGuard


OpenGuard: TypeAlias = "SavedGuard | ExportedGuard"
"""A guard of either kind; ``guard.judge(guard.batch(pixels))`` gives the verdict of both."""


def open_guard(
    path: str | Path,
    model: "nn.Module | str | Path | Callable[[], nn.Module] | None" = None,
    *,
    preprocessing: Mapping[str, Any] | None = None,
    key: Key | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> OpenGuard:
    """Open a guard that :meth:`oodles.Guard.save` or :meth:`oodles.Guard.export` wrote.

    A saved guard needs its ``model`` to judge images, or a function that returns it, which is called after the guard
    was read; and if it does not record how images are preprocessed, ``preprocessing``: ``size``, ``mean``, ``std`` and
    perhaps ``resize``. With a ``key`` it must be signed with it. An exported guard contains its model and
    preprocessing and needs no torch. ``threads`` is the number that the network runs on, by default one per core.
    """
    folder = Path(path)
    if is_exported(folder):
        given = {"model": model, "preprocessing": preprocessing or None, "key": key}
        unused = next((name for name, value in given.items() if value is not None), None)
        if unused is not None:
            raise ArgumentError(
                f"{folder} is exported and contains its model and preprocessing; leave out the {unused}"
            )
        return ExportedGuard.open(folder, device=device or "cpu", threads=threads)

    from oodles.deploy.saved import SavedGuard

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    return SavedGuard(folder, model, preprocessing=preprocessing, key=key, device=device)
