"""``BatchColumns``: from a batch of a loader to the columns that are kept of it."""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from oodles.columns import Columns, as_stored, rows_not_finite
from oodles.data.batches import BatchReader
from oodles.data.inputs import Inputs
from oodles.errors import ArgumentError, DataError
from oodles.features import Head
from oodles.network.classes import folder_names
from oodles.network.forward import ForwardPass
from oodles.network.perturbation import run_with_steps
from oodles.network.progress import Advance
from oodles.steps import Step

OnBad = Literal["raise", "mark"]
"""What to do about an input for which the network gives NaN or infinite values."""


@dataclass(frozen=True)
class BatchColumns:
    """What an extraction makes of each batch of its loader."""

    forward: ForwardPass
    reader: BatchReader
    steps: tuple[Step, ...]
    device: torch.device
    batch_size: int | None
    relabel: Tensor | None
    declared_multilabel: bool | None
    dtype: torch.dtype
    on_bad: OnBad
    declared_names: tuple[str, ...]
    amp: torch.dtype | None
    on_first: Callable[[Inputs], None] | None = None

    def batches(self, loader: Iterable[Any], advance: Advance) -> Generator[tuple[Inputs, Tensor | None]]:
        """The loader's batches, with labels as numbers of the model's classes."""
        for number, (inputs, labels) in enumerate(self.reader.read(loader)):
            if number == 0 and self.on_first is not None:
                self.on_first(inputs)
            yield inputs, labels if labels is None or self.relabel is None else self.relabel[labels]
            advance(len(inputs))

    def locate(self, inputs: Inputs) -> None:
        """Locate the last layer on the first batch of the loader, in full precision."""
        self.forward.find_head(self.forward.pieces(inputs.to(self.device), self.batch_size)[0])

    def good_rows(self, inputs: Inputs, labels: Tensor | None, place: str | int) -> tuple[Columns, list[int]]:
        """What is kept of one batch, as it is stored, and which of its inputs are left out.

        ``place`` is the number of the batch's first input, or names the batch.
        """
        kept = as_stored(self._columns(inputs, labels), self.dtype)
        bad = rows_not_finite(kept)
        if bad and self.on_bad == "raise":
            kind = " as float16, whose largest number is 65504" if self.dtype == torch.float16 else ""
            first = f"input {place + bad[0]}" if isinstance(place, int) else f"input {bad[0]} of {place}"
            raise DataError(
                f"{len(bad)} of {len(inputs)} inputs of a batch give NaN or infinite values{kind}, the first is {first}"
                '; check that input and the model\'s output for it, or leave such inputs out with on_bad="mark"'
            )
        if bad:
            good = torch.ones(len(inputs), dtype=torch.bool)
            good[bad] = False
            kept = {name: column[good] for name, column in kept.items()}
        return kept, bad

    def _columns(self, inputs: Inputs, labels: Tensor | None) -> Columns:
        """The columns of one batch of the loader, on the CPU."""
        pieces = []
        for part in self.forward.pieces(inputs.to(self.device), self.batch_size):
            self.forward.find_head(part)
            with self._precision():
                pieces.append(run_with_steps(self.forward, part, self.steps).columns)
        columns = {name: torch.cat([piece[name].float().cpu() for piece in pieces]) for name in pieces[0]}
        if labels is not None and labels.ndim == 2:
            if labels.shape[1] != columns["logits"].shape[1]:
                raise DataError(
                    f"the loader gave zeros and ones {tuple(labels.shape)} as labels, but the model has "
                    f"{columns['logits'].shape[1]} classes; pass labels= with the key or position of the labels in a "
                    "batch, or labels=False"
                )
            if not self.multilabel:
                raise DataError(
                    f"the loader gave labels {tuple(labels.shape)} of zeros and ones; pass multilabel=True if an input "
                    "may have several classes, else give class indices (labels.argmax(dim=1))"
                )
        elif labels is not None:
            columns["labels"] = labels.cpu()
        return columns

    def _precision(self) -> AbstractContextManager[object]:
        return nullcontext() if self.amp is None else torch.autocast(self.device.type, dtype=self.amp)

    @property
    def multilabel(self) -> bool:
        """Whether an input may have several classes; known after the first batch."""
        return self.forward.multilabel if self.declared_multilabel is None else self.declared_multilabel

    def head(self) -> Head | None:
        """The last layer, once it has been found."""
        head = self.forward.feature_head()
        return None if head is None else head.to("cpu")

    def names(self, classes: int, loader: object) -> tuple[str, ...]:
        """The names of the classes; folders that do not match the classes are reported and give no names."""
        names, folders = self.declared_names, folder_names(loader)
        if len(names) in (0, classes):
            return names
        if names != folders:
            raise ArgumentError(f"classes= has {len(names)} names, but the model has {classes} classes; name each")
        warnings.warn(
            f"{len(names)} class folders were numbered 0 to {len(names) - 1}, but the model has {classes} classes, so "
            "labels may be wrong; give the model's class names (classes=, --classes) or no labels (labels=False, "
            "--no-labels)",
            stacklevel=4,
        )
        return ()


def check_some_good(inputs: int, bad: Sequence[int]) -> None:
    """Raise if every input is bad."""
    if len(bad) == inputs:
        raise DataError(f"all {inputs} inputs give NaN or infinite values; check the model and the preprocessing")


def same_columns(first: Columns, other: Columns) -> None:
    """Raise unless both have the same columns of the same widths."""
    if first.keys() != other.keys():
        differing = ", ".join(sorted(first.keys() ^ other.keys()))
        raise DataError(f"some batches have {differing} and some do not; all batches must have the same parts")
    for name, column in first.items():
        if column.shape[1:] != other[name].shape[1:]:
            widths = f"{tuple(column.shape[1:])} and {tuple(other[name].shape[1:])}"
            raise DataError(f"{name} has different widths in different batches, {widths}; is it per input?")
