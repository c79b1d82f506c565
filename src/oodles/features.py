"""``Features``: the columns that every other part of oodles works on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
import torch
from torch import Tensor

from oodles.columns import (
    LAYER,
    Block,
    Columns,
    Gathered,
    InMemory,
    as_tensor,
    check_columns,
    check_logits,
    check_precision,
    fingerprint,
    native,
    to_storage,
)
from oodles.data.decoding import prefetch
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.head import Classifier
from oodles.head import Head as Head
from oodles.records.html import html_table
from oodles.store import Store, bad_rows, open_writer

Array = Tensor | npt.NDArray[Any]
READERS = 2  # threads that read and check blocks of a store
CHUNK_ELEMENTS = 1 << 21  # 16 MB in float64; above 32 MB glibc maps new memory for each block instead of reusing it
SHARD_ELEMENTS = 1 << 24
MIN_TO_SPLIT = 100
REMEDIES = {"labels": "give labels, or use the predicted classes: features.with_predicted_labels()"}
MAX_NAMES = 20  # of classes that a notebook shows


class Features:
    """Embeddings, logits and labels of ``n`` inputs, with the head (last layer) that turns embeddings into logits.

    ``embedding`` is ``(n, m)``, ``logits`` ``(n, C)`` (computed from the head if not given), ``labels`` ``(n,)``
    integers or None, ``layers`` pooled activations of inner modules by name, ``class_names`` the names of the C
    classes, and ``multilabel`` says that each logit has a sigmoid of its own in place of one softmax over all. Tensors
    or NumPy arrays are validated once, here, and all moved to the device of the embedding (of the logits without one);
    nothing is copied otherwise, so writing into those tensors later changes the ``Features`` too. One that was loaded
    from disk is memory-mapped: :meth:`batches`, slices and :meth:`split` read only the rows they return.

    >>> Features(torch.ones(3, 2), head=Head(torch.eye(2)), labels=torch.tensor([0, 1, 1]))
    Features(rows=3, width=2, classes=2, labels=yes)
    """

    __slots__ = ("_bad_rows", "_blocks", "_joined", "_model", "_names", "_rows", "validated")

    def __init__(
        self,
        embedding: Array | None = None,
        *,
        logits: Array | None = None,
        labels: Array | None = None,
        head: Head | None = None,
        layers: Mapping[str, Array] | None = None,
        class_names: Sequence[str] = (),
        multilabel: bool = False,
        bad_rows: Sequence[int] = (),
    ) -> None:
        given = {"embedding": embedding, "logits": logits, "labels": labels}
        columns = {name: as_tensor(name, column) for name, column in given.items() if column is not None}
        for name, activation in (layers or {}).items():
            columns[LAYER + name] = as_tensor(LAYER + name, activation)
        check_columns(columns, None if head is None else head.shape)
        device = next(iter(columns.values())).device
        columns = {name: column.to(device) for name, column in columns.items()}
        if head is not None:
            head = head.to(device)
            check_logits(columns, head)
        model = Classifier(head, tuple(map(str, class_names)), multilabel)
        self._build([InMemory(len(next(iter(columns.values()))), columns)], columns, model, bad_rows)
        if class_names and len(class_names) != self.classes:
            raise ArgumentError(
                f"{len(class_names)} class_names were given for {self.classes} classes; name each of them"
            )

    def _build(
        self, blocks: Sequence[Block], names: Iterable[str], model: Classifier, bad_rows: Sequence[int] = ()
    ) -> None:
        self._blocks = tuple(blocks)
        self._names = frozenset(names)
        self._rows = sum(block.rows for block in self._blocks)
        self._model = model
        self._bad_rows = tuple(bad_rows)
        self._joined: Columns = {}
        self.validated = True

    @classmethod
    def _trusted(
        cls, blocks: Sequence[Block], names: Iterable[str], model: Classifier, bad_rows: Sequence[int] = ()
    ) -> Self:
        """Rows that were validated before: slices of a Features, or shards protected by a checksum."""
        self = cls.__new__(cls)
        self._build(blocks, names, model, bad_rows)
        return self

    @classmethod
    def unvalidated(cls, columns: Columns, head: Head | None = None) -> Self:
        """Rows as they come out of a network, which may contain NaN or infinite values."""
        rows = len(next(iter(columns.values())))
        self = cls._trusted([InMemory(rows, columns)], columns, Classifier(head))
        self.validated = False
        return self

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        labelled = "yes" if "labels" in self._names else "no"
        return f"Features(rows={len(self)}, width={self.width}, classes={self.classes}, labels={labelled})"

    def _repr_html_(self) -> str:
        names = {"columns": ", ".join(sorted(self._names)), "class names": ", ".join(self.class_names[:MAX_NAMES])}
        return html_table(
            "Features", {"rows": len(self), "width": self.width, "classes": self.classes, **names}.items()
        )

    @property
    def head(self) -> Head | None:
        """The last linear layer, or None if only logits are known."""
        return self._model.head

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the C classes, in the order of the logits; () if they are unknown."""
        return self._model.class_names

    @property
    def multilabel(self) -> bool:
        """Whether an input may belong to several classes: one sigmoid per logit, no softmax."""
        return self._model.multilabel

    @property
    def bad_rows(self) -> tuple[int, ...]:
        """Which inputs of the loader ``extract(..., on_bad="mark")`` left out; slices and parts do not know."""
        return self._bad_rows

    @property
    def device(self) -> torch.device:
        """Where all columns and the head are."""
        if self.head is not None:
            return self.head.weight.device
        return next(iter(self._blocks[0].columns().values())).device

    @property
    def embedding(self) -> Tensor:
        """What enters the head, ``(n, m)``; ``(n, 0)`` if only logits are known."""
        if "embedding" not in self._names:
            return self.logits.new_empty(len(self), 0)
        return self._column("embedding")

    @property
    def logits(self) -> Tensor:
        """The head's output, ``(n, C)``: the network's own if it was kept, else computed once from the embedding."""
        if "logits" not in self._names and "logits" not in self._joined:
            if self.head is None:
                raise DataError(f"{self} has neither logits nor a head to compute them from")
            self._joined["logits"] = self.head(self.embedding)
        return self._column("logits")

    @property
    def labels(self) -> Tensor | None:
        """The true classes, if the loader gave them."""
        return self._column("labels") if "labels" in self._names else None

    @property
    def accuracy(self) -> float | None:
        """The fraction of rows whose label is the predicted class; None without labels."""
        if "labels" not in self._names:
            return None
        right = (part.logits.argmax(dim=1) == part.column("labels") for part in self.batches())
        return sum(int(part.sum()) for part in right) / len(self)

    @property
    def layers(self) -> dict[str, Tensor]:
        """Pooled activations of the inner modules that were requested."""
        return {name.removeprefix(LAYER): self._column(name) for name in sorted(self._names) if name.startswith(LAYER)}

    @property
    def width(self) -> int:
        """m, the length of an embedding; 0 if only logits are known."""
        if "embedding" not in self._names:
            return 0
        return self.head.width if self.head is not None else self._blocks[0].columns()["embedding"].shape[1]

    @property
    def classes(self) -> int:
        """C, the number of logits; 0 if only embeddings are known."""
        if self.head is not None:
            return self.head.classes
        return self._blocks[0].columns()["logits"].shape[1] if "logits" in self._names else 0

    def holds(self, column: str) -> bool:
        """Whether ``embedding``, ``logits``, ``labels``, ``head`` or ``layer.<name>`` is available."""
        if column == "head":
            return self.head is not None
        return self.classes > 0 if column == "logits" else column in self._names

    def column(self, name: str) -> Tensor:
        """A column by its name: ``embedding``, ``logits``, ``labels`` or ``layer.<name>``."""
        if not self.holds(name):
            raise ShapeError(f"{self} has no {name}; {REMEDIES.get(name, 'extract it from the model')}")
        return self.logits if name == "logits" else self._column(name)

    def _column(self, name: str) -> Tensor:
        if name not in self._joined:
            parts = [block.columns()[name] for block in self._blocks]
            self._joined[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._joined[name]

    def batches(self, batch_size: int | None = None) -> Iterator["Features"]:
        """Consecutive pieces of at most ``batch_size`` rows, as views, that together cover every row once.

        By default a piece is about 8 MB, which keeps it in the processor's caches. While one block of a store is used,
        the next one is read and checked.
        """
        if batch_size is None:
            batch_size = max(256, CHUNK_ELEMENTS // max(1, self.width, self.classes))
        if batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size} must be at least 1")
        for block, columns in self._read_ahead():
            for start in range(0, block.rows, batch_size):
                yield self._pick(columns, slice(start, start + batch_size))

    def _read_ahead(self) -> Iterator[tuple[Block, Columns]]:
        """Each block with its columns; meanwhile the next ones are read, two at once, since checksums take longest."""
        if len(self._blocks) == 1:
            yield self._blocks[0], self._blocks[0].columns()
            return
        for block, (columns,) in prefetch(
            ((block, [block]) for block in self._blocks), methodcaller("columns"), READERS
        ):
            yield block, columns

    def split(self, fraction: float = 0.2, *, seed: int = 0) -> tuple["Features", "Features"]:
        """The rows in two parts, chosen at random: all but ``fraction`` of them, and that fraction.

        Both keep the original order and read their rows block by block, so a store larger than memory can be split.
        """
        if not 0 < fraction < 1:
            raise ArgumentError(f"fraction={fraction} must lie strictly between 0 and 1")
        if len(self) < MIN_TO_SPLIT:
            raise DataError(f"{self} is too small to split, which needs {MIN_TO_SPLIT} rows; give two sets instead")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        count = max(1, int(fraction * len(self)))
        return self.gather(order[count:].sort().values), self.gather(order[:count].sort().values)

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> "Features":
        if isinstance(index, int):
            raise ArgumentError(f"features[{index}] is one row; write features[{index}:{index + 1}]")
        if isinstance(index, slice) and index.step in (None, 1):
            picked = self._span(*index.indices(len(self))[:2])
        else:
            chosen = index if isinstance(index, slice) else torch.as_tensor(native(index)).to(self.device)
            if isinstance(chosen, Tensor) and chosen.ndim != 1:
                raise ArgumentError(f"features take a slice, a list of rows or a mask, not {index!r}")
            picked = self._take(torch.arange(len(self), device=self.device)[chosen])
        if len(picked) == 0:
            raise DataError(f"{self}[{index}] selects no rows; select at least one")
        return picked

    def _span(self, start: int, stop: int) -> "Features":
        """Rows ``start`` to ``stop`` as views, reading only the blocks that contain them."""
        pieces: list[Block] = []
        offset = 0
        for block in self._blocks:
            low, high = max(start - offset, 0), min(stop - offset, block.rows)
            if low < high:
                pieces.extend(self._pick(block.columns(), slice(low, high))._blocks)
            offset += block.rows
        return Features._trusted(pieces, self._names, self._model)

    def _take(self, rows: Tensor) -> "Features":
        """Copies of the given rows, in the order given; of each block only what is wanted of it."""
        taken: Columns = {}
        for block, here, inside in self._located(rows):
            for name, column in block.columns().items():
                if name not in taken:
                    taken[name] = column.new_empty(len(rows), *column.shape[1:])
                taken[name][here] = column[inside]
        return Features._trusted([InMemory(len(rows), taken)], self._names, self._model)

    def gather(self, rows: Tensor) -> "Features":
        """The rows of an ascending index, without reading any of them yet."""
        pieces = [Gathered(block, inside) for block, _, inside in self._located(rows)]
        return Features._trusted(pieces, self._names, self._model)

    def _located(self, rows: Tensor) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Each block that has some of the rows, which of them, and where in the block they are."""
        offset = 0
        for block in self._blocks:
            here = (rows >= offset) & (rows < offset + block.rows)
            if here.any():
                yield block, here, rows[here] - offset
            offset += block.rows

    def _pick(self, columns: Columns, rows: slice) -> "Features":
        picked = {name: column[rows] for name, column in columns.items()}
        count = len(next(iter(picked.values())))
        return Features._trusted([InMemory(count, picked)], picked, self._model)

    @classmethod
    def concat(cls, parts: Sequence["Features"]) -> "Features":
        """All rows of ``parts``, one part after another; they must come from the same head."""
        if not parts:
            raise DataError("there is nothing to concatenate; give at least one Features")
        first = parts[0]
        for part in parts[1:]:
            if part._names != first._names:
                differing = ", ".join(sorted(part._names ^ first._names))
                raise ShapeError(
                    f"{part} and {first} differ in their columns ({differing}); extract both in the same way"
                )
            heads = part.head, first.head
            alike = heads[0] is heads[1] or (heads[0] and heads[1] and heads[0].same_as(heads[1]))
            shapes = [(each.width, each.classes, each.multilabel) for each in (part, first)]
            if not alike or shapes[0] != shapes[1]:
                raise ShapeError(f"{part} and {first} come from different heads; extract both with the same model")
            if part.device != first.device:
                raise ArgumentError(f"{part} is on {part.device}, {first} on {first.device}; move one of them with .to")
        return cls._trusted([block for part in parts for block in part._blocks], first._names, first._model)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Features":
        """The same rows on another device or with another floating-point type; labels stay integers."""
        check_precision(dtype)
        kinds = {name: None if name == "labels" else dtype for name in self._names}
        columns = {name: self._column(name).to(device=device, dtype=kind) for name, kind in kinds.items()}
        head = None if self.head is None else self.head.to(device, dtype)
        if dtype not in (None, torch.float64):  # a narrower type may have made large values infinite
            check_columns(columns, None if head is None else head.shape)
        block = InMemory(len(self), columns)
        return Features._trusted([block], columns, replace(self._model, head=head), self._bad_rows)

    def with_predicted_labels(self) -> "Features":
        """The same rows, in memory, with the predicted classes as labels.

        >>> Features(torch.tensor([[3.0, 1.0], [0.0, 2.0]]), head=Head(torch.eye(2))).with_predicted_labels().labels
        tensor([0, 1])
        """
        columns = {name: self._column(name) for name in self._names}
        columns |= {"logits": self.logits, "labels": self.logits.argmax(dim=1)}
        return Features._trusted([InMemory(len(self), columns)], columns, self._model, self._bad_rows)

    def save(self, path: str | Path, *, dtype: torch.dtype = torch.float32, note: str = "") -> None:
        """Write a feature store to the folder ``path``; ``note`` is free text kept with it."""
        check_precision(dtype)
        head = "none" if self.head is None else fingerprint(self.head.tensors())
        about = {"dtype": str(dtype), "head": head}
        with open_writer(Path(path), about, note, restart=True) as writer:
            if writer.complete:
                raise DataError(f"{path} already holds features; choose another folder or delete it")
            if self.head is not None:
                writer.write_head(self.head)
            writer.manifest.update(class_names=list(self.class_names), multilabel=self.multilabel)
            per_row = sum(column.shape[1:].numel() for column in self._blocks[0].columns().values())
            for number, batch in enumerate(self.batches(max(1, SHARD_ELEMENTS // max(1, per_row)))):
                stored = to_storage({name: batch._column(name) for name in batch._names}, dtype)
                writer.append(stored, fingerprint(stored), (number, number + 1), () if number else self._bad_rows)
            writer.finish()

    @classmethod
    def load(cls, path: str | Path) -> "Features":
        """Open a feature store: takes milliseconds whatever its size; rows are memory-mapped when used."""
        store = Store(Path(path))
        model = Classifier(store.head, tuple(store.manifest["class_names"]), store.manifest["multilabel"])
        return cls._trusted(store.shards, store.columns, model, bad_rows(store.manifest))
