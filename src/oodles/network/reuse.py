"""``extract_each``: one extraction for several detectors, and stores that are used again by later ones."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from oodles.features import Features
from oodles.network.extraction import extract
from oodles.network.wanted import Wanted

MORE = "passes"  # the folder beside a store for columns that were wanted later


def extract_each(
    model: nn.Module, loader: Iterable[Any], wanted: Sequence[Wanted], *, store: Path | None = None, **options: Any
) -> list[Features]:
    """For each of ``wanted``, features that have it; all that no store has is extracted together.

    If ``store`` lacks something, that is written to a store of its own, ``passes/<digest>/<name>`` beside it. Both are
    looked through the next time, so nothing is extracted twice. ``options`` are passed to :func:`oodles.extract`.
    """
    if store is None:
        whole = Wanted.union(wanted)
        return [extract(model, loader, layers=whole.layers, steps=whole.steps, **options)] * len(wanted)
    stores = [store, *sorted(folder / store.name for folder in (store.parent / MORE).glob("*"))]
    found = [next((path for path in stores if each.is_in(path)), None) for each in wanted]
    missing = Wanted.union(each for each, path in zip(wanted, found, strict=True) if path is None)
    new = store if missing.belongs_in(store) else _beside(store, missing)
    opened: dict[Path | None, Features] = {}
    for each, path in zip(wanted, found, strict=True):
        if path not in opened:
            layers, steps = missing if path is None else each
            opened[path] = extract(model, loader, layers=layers, steps=steps, store=path or new, **options)
    return [opened[path] for path in found]


def _beside(store: Path, wanted: Wanted) -> Path:
    named = [*wanted.layers, *(f"{step.name} {step.identity}" for step in wanted.steps)]
    return store.parent / MORE / hashlib.sha256("\n".join(named).encode()).hexdigest()[:12] / store.name
