"""What the commands that use a guard share: which guard, which inputs, which model, which preprocessing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodles.cli.common import notice
from oodles.cli.options import GuardOptions, load_model
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from torch import nn

    from oodles.deploy.opening import OpenGuard
    from oodles.guard import Guard

SHIPPED = "cifar10-small"  # the network that is used if the user names no guard


def split_paths(command: str, paths: Sequence[Path], model: str | None) -> tuple[Path | None, list[Path]]:
    """Return the guard, or None if the first path is not one, and the inputs."""
    from oodles.deploy.artefact import is_guard
    from oodles.deploy.sources import LIST

    guard, inputs = (paths[0], [*paths[1:]]) if is_guard(paths[0]) else (None, [*paths])
    if not inputs:
        raise ArgumentError(f"{command} needs an input besides the guard {guard}; give images or a folder of them")
    later = next((path for path in inputs if is_guard(path)), None)
    if later is not None:
        raise ArgumentError(f"{later} is a guard; {command} takes one guard, before the inputs")
    if guard is None and model is not None:
        raise ArgumentError(
            f"--model needs a guard, and {inputs[0]} is none; give a folder written by `oodles fit` before the inputs"
        )
    # before the guard is opened, which takes longer; a file in an archive is looked for later
    lost = (path for path in inputs if path != LIST and not path.exists() and not any(map(Path.is_file, path.parents)))
    missing = next(lost, None)
    if missing is not None:
        raise DataError(f"{missing} does not exist")
    return guard, inputs


def open_for(guard: Path | None, given: GuardOptions, *, images: bool, **options: Any) -> "OpenGuard":
    """Open a guard, with its model if there are images; without a path, that of the network that comes with oodles.

    ``options`` are passed to :func:`oodles.deploy.opening.open_guard`.
    """
    from oodles.deploy.opening import open_guard

    named = guard is None or given.model is not None or given.checkpoint is not None
    return open_guard(
        _folder(guard),
        (lambda: _network(guard, given)) if images and named else None,
        preprocessing=given.given(),
        key=given.key,
        **options,
    )


def load_with_model(guard: Path | None, given: GuardOptions) -> "Guard":
    """Load a saved guard with its model; without a path, that of the network that comes with oodles."""
    from oodles.guard import Guard

    return Guard.load(_folder(guard), _network(guard, given), key=given.key)


def _folder(guard: Path | None) -> Path:
    if guard is not None:
        return guard
    from oodles.models.shipped import GUARD, shipped_folder

    return shipped_folder(SHIPPED) / GUARD


def _network(guard: Path | None, given: GuardOptions) -> "nn.Module":
    """Load the model that the options name, or the one that comes with oodles, and say so."""
    from oodles.models import load, read_card

    if guard is not None:
        if given.model is None:
            raise ArgumentError(f"{guard} guards your own model, so images need --model and --checkpoint")
        return load_model(given.model, given.checkpoint)
    card = read_card(SHIPPED)
    network = f"{SHIPPED}, {card['what']} ({', '.join(card['classes'])})"
    accuracy = f"{card['test accuracy']:.1%} accurate on JPEG test images"
    notice(f"no guard given: using {network}, {accuracy}. Pictures are resized to 32 pixels.")
    return load(SHIPPED)
