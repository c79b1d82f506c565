"""``Features`` and ``Head``: what the network said about some images, and the one currency of the house."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.store import Columns, Store, Writer

LAYER = "layer."
CHUNK_ELEMENTS = 1 << 22
SHARD_ELEMENTS = 1 << 24


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: ``weight (C, m)`` and ``bias (C,)`` or None; calling it gives logits.

    >>> Head(torch.eye(2))(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weight.ndim != 2:
            raise ShapeError(f"a head's weight is (classes, width), got shape {tuple(self.weight.shape)}")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ShapeError(
                f"a head with {self.classes} classes needs a bias of shape ({self.classes},), "
                f"got {tuple(self.bias.shape)}"
            )
        for name, tensor in self.tensors().items():
            if not torch.isfinite(tensor).all():
                raise DataError(f"the head's {name} holds NaN or infinite values; is the checkpoint whole?")

    def __call__(self, embedding: Tensor) -> Tensor:
        """The logits ``(n, C)`` of embeddings ``(n, m)``."""
        return F.linear(embedding.to(self.weight.dtype), self.weight, self.bias)

    @property
    def classes(self) -> int:
        """C, the number of logits."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """m, the length of an embedding."""
        return self.weight.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """The parts that exist, by name."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Head":
        """The same head on another device or in another floating type."""
        return Head(**{name: tensor.to(device=device, dtype=dtype) for name, tensor in self.tensors().items()})

    def same_as(self, other: "Head") -> bool:
        """Whether both hold the very same numbers."""
        if (self.bias is None) != (other.bias is None):
            return False
        theirs = other.tensors()
        return all(torch.equal(mine.cpu(), theirs[name].cpu()) for name, mine in self.tensors().items())


class Block(Protocol):
    """Some rows: tensors in memory, or a shard that is mapped from disk when touched."""

    @property
    def rows(self) -> int:
        """How many."""

    def columns(self) -> Columns:
        """The tensors, by column name."""


@dataclass(frozen=True, eq=False)
class _InMemory:
    rows: int
    tensors: Columns

    def columns(self) -> Columns:
        return self.tensors


class Features:
    """Embeddings, logits and labels of ``n`` images, with the head that turns the first into the second.

    ``embedding`` is ``(n, m)``, ``logits`` ``(n, C)`` (computed from the head where not given),
    ``labels`` ``(n,)`` integers or None, ``layers`` pooled activations of inner modules by name.
    Values are checked once, here; afterwards a ``Features`` never changes. One that was loaded
    from disk is mapped, not read: :meth:`batches` and slices touch only the rows they give.

    >>> head = Head(torch.eye(2))
    >>> Features(torch.ones(3, 2), head=head, labels=torch.tensor([0, 1, 1]))
    Features(rows=3, width=2, classes=2, labels=yes)
    """

    __slots__ = ("_blocks", "_head", "_joined", "_names", "_rows")

    def __init__(
        self,
        embedding: Tensor | None = None,
        *,
        logits: Tensor | None = None,
        labels: Tensor | None = None,
        head: Head | None = None,
        layers: Mapping[str, Tensor] | None = None,
    ) -> None:
        columns: Columns = {}
        if embedding is not None:
            columns["embedding"] = torch.as_tensor(embedding)
        if logits is not None:
            columns["logits"] = torch.as_tensor(logits)
        if labels is not None:
            columns["labels"] = torch.as_tensor(labels)
        for name, activation in (layers or {}).items():
            columns[LAYER + name] = activation
        check_columns(columns, head)
        rows = len(next(iter(columns.values())))
        self._build([_InMemory(rows, columns)], columns, head)

    def _build(self, blocks: Sequence[Block], names: Iterable[str], head: Head | None) -> None:
        self._blocks = tuple(blocks)
        self._names = frozenset(names)
        self._rows = sum(block.rows for block in self._blocks)
        self._head = head
        self._joined: Columns = {}

    @classmethod
    def _trusted(cls, blocks: Sequence[Block], names: Iterable[str], head: Head | None) -> Self:
        """Rows that were checked before: slices of a Features, or shards behind a checksum."""
        self = cls.__new__(cls)
        self._build(blocks, names, head)
        return self

    # What is in it ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        labelled = "yes" if "labels" in self._names else "no"
        return f"Features(rows={len(self)}, width={self.width}, classes={self.classes}, labels={labelled})"

    @property
    def head(self) -> Head | None:
        """The last linear layer, or None where only logits are known."""
        return self._head

    @property
    def embedding(self) -> Tensor:
        """What enters the head, ``(n, m)``; ``(n, 0)`` where only logits are known."""
        if "embedding" not in self._names:
            return self.logits.new_empty(len(self), 0)
        return self._column("embedding")

    @property
    def logits(self) -> Tensor:
        """The head's output, ``(n, C)``: the network's own where it was kept, else computed once here."""
        if "logits" not in self._names and "logits" not in self._joined:
            if self._head is None:
                raise DataError(f"{self} has neither logits nor a head to compute them from")
            self._joined["logits"] = self._head(self.embedding)
        return self._column("logits")

    @property
    def labels(self) -> Tensor | None:
        """The true classes, where the loader gave them."""
        return self._column("labels") if "labels" in self._names else None

    @property
    def layers(self) -> dict[str, Tensor]:
        """Pooled activations of the inner modules that were asked for."""
        names = sorted(name for name in self._names if name.startswith(LAYER))
        return {name.removeprefix(LAYER): self._column(name) for name in names}

    @property
    def width(self) -> int:
        """m, the length of an embedding; 0 where only logits are known."""
        if "embedding" not in self._names:
            return 0
        return self._head.width if self._head is not None else self._blocks[0].columns()["embedding"].shape[1]

    @property
    def classes(self) -> int:
        """C, the number of logits; 0 where only embeddings are known."""
        if self._head is not None:
            return self._head.classes
        return self._blocks[0].columns()["logits"].shape[1] if "logits" in self._names else 0

    def holds(self, column: str) -> bool:
        """Whether ``embedding``, ``logits``, ``labels``, ``head`` or ``layer.<name>`` is there."""
        if column == "head":
            return self._head is not None
        return self.classes > 0 if column == "logits" else column in self._names

    def column(self, name: str) -> Tensor:
        """A column by its name: ``embedding``, ``logits``, ``labels`` or ``layer.<name>``."""
        if not self.holds(name):
            raise ShapeError(f"{self} holds no {name}; extract it from the model")
        return self.logits if name == "logits" else self._column(name)

    def _column(self, name: str) -> Tensor:
        if name not in self._joined:
            parts = [block.columns()[name] for block in self._blocks]
            self._joined[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._joined[name]

    # Parts of it --------------------------------------------------------------------------------

    def batches(self, rows: int | None = None) -> Iterator["Features"]:
        """Consecutive pieces of at most ``rows`` rows, as views; together they are all rows once.

        Without ``rows`` the pieces are about 16 MB, which keeps them in the processor's caches.
        """
        if rows is None:
            rows = max(256, CHUNK_ELEMENTS // max(1, self.width, self.classes))
        if rows < 1:
            raise ArgumentError(f"batches of {rows} rows hold nothing; ask for at least 1")
        for block in self._blocks:
            columns = block.columns()
            for start in range(0, block.rows, rows):
                yield self._pick(columns, slice(start, start + rows))

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> "Features":
        if isinstance(index, int):
            raise ArgumentError(f"features[{index}] is one row; write features[{index}:{index + 1}]")
        if isinstance(index, slice) and index.step in (None, 1):
            picked = self._span(*index.indices(len(self))[:2])
        else:
            chosen = index if isinstance(index, slice) else torch.as_tensor(index)
            if isinstance(chosen, Tensor) and chosen.ndim != 1:
                raise ArgumentError(f"features take a slice, a list of rows or a mask, not {index!r}")
            picked = self._pick({name: self._column(name) for name in self._names}, chosen)
        if len(picked) == 0:
            raise DataError(f"{self}[{index}] picks no row")
        return picked

    def _span(self, start: int, stop: int) -> "Features":
        """Rows ``start`` to ``stop`` as views, touching only the blocks they lie in."""
        pieces: list[Block] = []
        offset = 0
        for block in self._blocks:
            low, high = max(start - offset, 0), min(stop - offset, block.rows)
            if low < high:
                pieces.extend(self._pick(block.columns(), slice(low, high))._blocks)
            offset += block.rows
        return Features._trusted(pieces, self._names, self._head)

    def _pick(self, columns: Columns, index: slice | Tensor) -> "Features":
        picked = {name: column[index] for name, column in columns.items()}
        rows = len(next(iter(picked.values())))
        return Features._trusted([_InMemory(rows, picked)], picked, self._head)

    @classmethod
    def concat(cls, parts: Sequence["Features"]) -> "Features":
        """All rows of ``parts`` after one another; they must come from the same head."""
        if not parts:
            raise DataError("there is nothing to concatenate")
        first = parts[0]
        for part in parts[1:]:
            if part._names != first._names:
                differing = ", ".join(sorted(part._names ^ first._names))
                raise ShapeError(f"{part} and {first} do not hold the same columns ({differing})")
            alike = part._head is first._head or (
                part._head is not None and first._head is not None and part._head.same_as(first._head)
            )
            if not alike or part.width != first.width or part.classes != first.classes:
                raise ShapeError(f"{part} and {first} come from different heads and cannot be joined")
        return cls._trusted([block for part in parts for block in part._blocks], first._names, first._head)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Features":
        """The same rows on another device or in another floating type; labels stay integers."""
        columns = {
            name: self._column(name).to(device=device, dtype=None if name == "labels" else dtype)
            for name in self._names
        }
        head = None if self._head is None else self._head.to(device, dtype)
        if dtype in (torch.float16, torch.bfloat16):
            check_columns(columns, head)
        return Features._trusted([_InMemory(len(self), columns)], columns, head)

    # On disk ------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, dtype: torch.dtype = torch.float32, note: str = "") -> None:
        """Write a store at ``path`` (a folder); ``note`` is what you want to remember of the data."""
        about = {
            "dtype": str(dtype),
            "head": "none" if self._head is None else fingerprint(self._head.tensors()),
        }
        with Writer(Path(path), about, note) as writer:
            if writer.shards:
                raise DataError(f"{path} holds features already; choose another folder or delete it")
            writer.write_head({} if self._head is None else self._head.tensors())
            per_row = sum(block[name].shape[1:].numel() for block in [self._blocks[0].columns()] for name in block)
            for batch in self.batches(max(1, SHARD_ELEMENTS // max(1, per_row))):
                stored = store_columns({name: batch._column(name) for name in batch._names}, dtype)
                writer.append(stored, fingerprint(stored))
            writer.finish()

    @classmethod
    def load(cls, path: str | Path) -> "Features":
        """Open a store: milliseconds and no memory whatever its size; rows are mapped when used."""
        store = Store(Path(path))
        head = Head(**store.head) if store.head else None
        return cls._trusted(store.shards, store.columns, head)


def store_columns(columns: Columns, dtype: torch.dtype) -> Columns:
    """Columns as they go to disk: on the CPU, floats in ``dtype``, labels as 64-bit integers."""
    converted = {
        name: column.detach().to("cpu", torch.int64 if name == "labels" else dtype) for name, column in columns.items()
    }
    if dtype == torch.float16:
        for name, column in converted.items():
            _check_finite(f"{name} as float16 (largest value 65504)", column)
    return converted


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes: equal exactly when the tensors are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_columns(columns: Columns, head: Head | None) -> None:
    """Raise unless rows match, widths fit the head, values are finite and labels name classes."""
    if not columns or ("embedding" not in columns and "logits" not in columns):
        raise DataError("features need an embedding or logits, and got neither")
    rows = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise ShapeError("columns differ in rows: " + ", ".join(f"{name} {n}" for name, n in rows.items()))
    if 0 in rows.values():
        raise DataError("features without a single row; is the loader empty?")
    for name, column in columns.items():
        if name == "labels":
            continue
        if column.ndim != 2 or not column.is_floating_point():
            kind = f"{column.dtype} of shape {tuple(column.shape)}"
            raise ShapeError(f"{name} must be a floating tensor (rows, width), got {kind}")
        _check_finite(name, column)
    classes = head.classes if head is not None else columns["logits"].shape[1] if "logits" in columns else None
    if head is not None:
        for name, want in (("embedding", head.width), ("logits", head.classes)):
            if name in columns and columns[name].shape[1] != want:
                raise ShapeError(f"{name} has width {columns[name].shape[1]}, the head wants {want}")
    if "labels" in columns:
        _check_labels(columns["labels"], classes)


def _check_finite(name: str, column: Tensor) -> None:
    # min and max carry any NaN or infinity, so the usual case needs no mask the size of the data
    if not column.numel() or all(torch.isfinite(end) for end in torch.aminmax(column)):
        return
    bad = torch.nonzero(~torch.isfinite(column).all(dim=1)).flatten()
    raise DataError(
        f"{name}: {len(bad)} of {len(column)} rows hold NaN or infinite values, the first is row {int(bad[0])}; "
        "look at that input and at the model's output for it"
    )


def _check_labels(labels: Tensor, classes: int | None) -> None:
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ShapeError(f"labels must be integers (rows,), got {labels.dtype} of shape {tuple(labels.shape)}")
    outside = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    bad = torch.nonzero(outside).flatten()
    if len(bad):
        first = int(bad[0])
        raise DataError(
            f"{len(bad)} of {len(labels)} labels are not classes of this model (0 to {classes and classes - 1}), "
            f"the first is {int(labels[first])} in row {first}; leave labels out for data of other classes"
        )
