"""``Features``, ``Head`` and ``Step``: the data structures that every other part of oodles works on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from oodles.columns import LAYER, Columns, check_columns, check_logits, fingerprint, to_storage
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.store import Store, Writer

CHUNK_ELEMENTS = 1 << 22
SHARD_ELEMENTS = 1 << 24
FEWEST_TO_SPLIT = 100


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: ``weight (C, m)`` and ``bias (C,)`` or None; calling it gives logits.

    >>> Head(torch.eye(2))(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        for name, part in self.tensors().items():
            object.__setattr__(self, name, torch.as_tensor(part))  # from NumPy too
        if self.weight.ndim != 2:
            raise ShapeError(f"a head's weight is (classes, width), got shape {tuple(self.weight.shape)}")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ShapeError(f"{self.classes} classes need a bias ({self.classes},), got {tuple(self.bias.shape)}")
        for name, tensor in self.tensors().items():
            if not torch.isfinite(tensor).all():
                raise DataError(f"the head's {name} contains NaN or infinite values; is the checkpoint intact?")

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

    @property
    def shape(self) -> tuple[int, int]:
        """``(C, m)``."""
        return self.classes, self.width

    def full_bias(self) -> Tensor:
        """The bias, or zeros if there is none."""
        return torch.zeros_like(self.weight[:, 0]) if self.bias is None else self.bias

    @cached_property
    def probe(self) -> Tensor:
        """The logits ``(C,)`` of a fixed pseudo-random embedding, by which heads are told apart in any precision."""
        embedding = torch.rand(self.width, generator=torch.Generator().manual_seed(0))
        return self.weight.detach().cpu().float() @ embedding + self.full_bias().detach().cpu().float()

    def tensors(self) -> dict[str, Tensor]:
        """The weight and, if there is one, the bias, by name."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Head":
        """The same head on another device or with another floating-point type."""
        return Head(**{name: tensor.to(device=device, dtype=dtype) for name, tensor in self.tensors().items()})

    def same_as(self, other: "Head") -> bool:
        """Whether both have exactly the same numbers."""
        if (self.bias is None) != (other.bias is None):
            return False
        theirs = other.tensors()
        return all(torch.equal(mine.cpu(), theirs[name].cpu()) for name, mine in self.tensors().items())


Objective = Callable[[Columns], Tensor]  # one number per image, which an input step lowers, from its columns


@dataclass(frozen=True, eq=False)
class Step:
    """Images moved by ``-epsilon * sign(gradient of objective)``; of the following pass the column ``keep`` is kept.

    The result becomes the column ``layer.<name>``, so the name must distinguish objective and epsilon from all others;
    ``identity`` distinguishes objectives of the same name that were learned from different rows. With ``std`` the step
    is divided by it per channel, so that epsilon is in units of raw pixels, as in ODIN's code. With ``share`` only
    that fraction of an image's values is moved, those with the smallest gradients. A value whose gradient is zero does
    not move. Steps with the same objective share its backward pass.
    """

    name: str
    objective: Objective
    epsilon: float
    keep: str = "logits"
    std: tuple[float, ...] = ()
    share: float = 1.0
    identity: str = ""

    @property
    def column(self) -> str:
        """The column that holds the result."""
        return LAYER + self.name

    def move(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The images after the step."""
        step = gradient.sign()
        if self.share < 1:
            size = gradient.abs().flatten(1)
            limit = size.kthvalue(max(1, round(self.share * size.shape[1])), dim=1).values
            step = step * (size <= limit[:, None]).view_as(step)
        if self.std:
            if images.ndim < 3 or len(self.std) != images.shape[1]:
                raise ArgumentError(f"std={self.std} does not fit images of shape {tuple(images.shape[1:])}")
            step = step / step.new_tensor(self.std).view(1, -1, *(1,) * (images.ndim - 2))
        return images - self.epsilon * step


def distinct_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps of the same name once."""
    once: dict[str, Step] = {}
    for step in steps:
        if once.setdefault(step.name, step).identity != step.identity:
            raise ArgumentError(f"two detectors fitted on different rows need the step {step.name!r}; run each alone")
    return tuple(once.values())


class Block(Protocol):
    """Some rows: tensors in memory, or a shard that is memory-mapped when its rows are used."""

    @property
    def rows(self) -> int: ...  # noqa: D102

    def columns(self) -> Columns: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class _InMemory:
    rows: int
    tensors: Columns

    def columns(self) -> Columns:
        return self.tensors


@dataclass(frozen=True, eq=False)
class _Gathered:
    """Some rows of another block, copied out of it each time they are used and not kept."""

    block: Block
    index: Tensor

    @property
    def rows(self) -> int:
        return len(self.index)

    def columns(self) -> Columns:
        return {name: column[self.index] for name, column in self.block.columns().items()}


class Features:
    """Embeddings, logits and labels of ``n`` images, with the head that turns embeddings into logits.

    ``embedding`` is ``(n, m)``, ``logits`` ``(n, C)`` (computed from the head if not given), ``labels`` ``(n,)``
    integers or None, ``layers`` pooled activations of inner modules by name. Values are validated once, here;
    afterwards a ``Features`` never changes. One that was loaded from disk is memory-mapped: :meth:`batches`, slices
    and :meth:`split` read only the rows they return.

    >>> Features(torch.ones(3, 2), head=Head(torch.eye(2)), labels=torch.tensor([0, 1, 1]))
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
        given = {"embedding": embedding, "logits": logits, "labels": labels}
        columns = {name: torch.as_tensor(column) for name, column in given.items() if column is not None}
        for name, activation in (layers or {}).items():
            columns[LAYER + name] = activation
        check_columns(columns, None if head is None else head.shape)
        if head is not None:
            check_logits(columns, head, head.weight.device)
        self._build([_InMemory(len(next(iter(columns.values()))), columns)], columns, head)

    def _build(self, blocks: Sequence[Block], names: Iterable[str], head: Head | None) -> None:
        self._blocks = tuple(blocks)
        self._names = frozenset(names)
        self._rows = sum(block.rows for block in self._blocks)
        self._head = head
        self._joined: Columns = {}

    @classmethod
    def _trusted(cls, blocks: Sequence[Block], names: Iterable[str], head: Head | None) -> Self:
        """Rows that were validated before: slices of a Features, or shards protected by a checksum."""
        self = cls.__new__(cls)
        self._build(blocks, names, head)
        return self

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        labelled = "yes" if "labels" in self._names else "no"
        return f"Features(rows={len(self)}, width={self.width}, classes={self.classes}, labels={labelled})"

    @property
    def head(self) -> Head | None:
        """The last linear layer, or None if only logits are known."""
        return self._head

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
            if self._head is None:
                raise DataError(f"{self} has neither logits nor a head to compute them from")
            self._joined["logits"] = self._head(self.embedding)
        return self._column("logits")

    @property
    def labels(self) -> Tensor | None:
        """The true classes, if the loader gave them."""
        return self._column("labels") if "labels" in self._names else None

    @property
    def layers(self) -> dict[str, Tensor]:
        """Pooled activations of the inner modules that were requested."""
        return {name.removeprefix(LAYER): self._column(name) for name in sorted(self._names) if name.startswith(LAYER)}

    @property
    def width(self) -> int:
        """m, the length of an embedding; 0 if only logits are known."""
        if "embedding" not in self._names:
            return 0
        return self._head.width if self._head is not None else self._blocks[0].columns()["embedding"].shape[1]

    @property
    def classes(self) -> int:
        """C, the number of logits; 0 if only embeddings are known."""
        if self._head is not None:
            return self._head.classes
        return self._blocks[0].columns()["logits"].shape[1] if "logits" in self._names else 0

    def holds(self, column: str) -> bool:
        """Whether ``embedding``, ``logits``, ``labels``, ``head`` or ``layer.<name>`` is available."""
        if column == "head":
            return self._head is not None
        return self.classes > 0 if column == "logits" else column in self._names

    def column(self, name: str) -> Tensor:
        """A column by its name: ``embedding``, ``logits``, ``labels`` or ``layer.<name>``."""
        if not self.holds(name):
            raise ShapeError(f"{self} has no {name}; extract it from the model")
        return self.logits if name == "logits" else self._column(name)

    def _column(self, name: str) -> Tensor:
        if name not in self._joined:
            parts = [block.columns()[name] for block in self._blocks]
            self._joined[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._joined[name]

    def batches(self, batch_size: int | None = None) -> Iterator["Features"]:
        """Consecutive pieces of at most ``batch_size`` rows, as views, that together cover every row once.

        By default a piece is about 16 MB, which keeps it in the processor's caches.
        """
        if batch_size is None:
            batch_size = max(256, CHUNK_ELEMENTS // max(1, self.width, self.classes))
        if batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size} must be at least 1")
        for block in self._blocks:
            columns = block.columns()
            for start in range(0, block.rows, batch_size):
                yield self._pick(columns, slice(start, start + batch_size))

    def split(self, fraction: float = 0.2, *, seed: int = 0) -> tuple["Features", "Features"]:
        """The rows in two parts, chosen at random: all but ``fraction`` of them, and that fraction.

        Both keep the original order and read their rows block by block, so a store larger than memory can be split.
        """
        if not 0 < fraction < 1:
            raise ArgumentError(f"fraction={fraction} must lie strictly between 0 and 1")
        if len(self) < FEWEST_TO_SPLIT:
            raise DataError(f"{self} is too small to split, which needs {FEWEST_TO_SPLIT} rows; give two sets instead")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        count = max(1, int(fraction * len(self)))
        return self._gather(order[count:].sort().values), self._gather(order[:count].sort().values)

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
            raise DataError(f"{self}[{index}] selects no rows")
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
        return Features._trusted(pieces, self._names, self._head)

    def _gather(self, rows: Tensor) -> "Features":
        """The rows of an ascending index, without reading any of them yet."""
        pieces: list[Block] = []
        offset = 0
        for block in self._blocks:
            inside = rows[(rows >= offset) & (rows < offset + block.rows)] - offset
            if len(inside):
                pieces.append(_Gathered(block, inside))
            offset += block.rows
        return Features._trusted(pieces, self._names, self._head)

    def _pick(self, columns: Columns, index: slice | Tensor) -> "Features":
        picked = {name: column[index] for name, column in columns.items()}
        rows = len(next(iter(picked.values())))
        return Features._trusted([_InMemory(rows, picked)], picked, self._head)

    @classmethod
    def concat(cls, parts: Sequence["Features"]) -> "Features":
        """All rows of ``parts``, one part after another; they must come from the same head."""
        if not parts:
            raise DataError("there is nothing to concatenate")
        first = parts[0]
        for part in parts[1:]:
            if part._names != first._names:
                differing = ", ".join(sorted(part._names ^ first._names))
                raise ShapeError(f"{part} and {first} do not have the same columns ({differing})")
            heads = part._head, first._head
            alike = heads[0] is heads[1] or (heads[0] and heads[1] and heads[0].same_as(heads[1]))
            if not alike or part.width != first.width or part.classes != first.classes:
                raise ShapeError(f"{part} and {first} come from different heads and cannot be concatenated")
        return cls._trusted([block for part in parts for block in part._blocks], first._names, first._head)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Features":
        """The same rows on another device or with another floating-point type; labels stay integers."""
        kinds = {name: None if name == "labels" else dtype for name in self._names}
        columns = {name: self._column(name).to(device=device, dtype=kind) for name, kind in kinds.items()}
        head = None if self._head is None else self._head.to(device, dtype)
        if dtype in (torch.float16, torch.bfloat16):
            check_columns(columns, None if head is None else head.shape)
        return Features._trusted([_InMemory(len(self), columns)], columns, head)

    def save(self, path: str | Path, *, dtype: torch.dtype = torch.float32, note: str = "") -> None:
        """Write a feature store to the folder ``path``; ``note`` is free text kept with it."""
        head = {} if self._head is None else self._head.tensors()
        about = {"dtype": str(dtype), "head": fingerprint(head) if head else "none"}
        with Writer(Path(path), about, note) as writer:
            if writer.shards:
                raise DataError(f"{path} already holds features; choose another folder or delete it")
            writer.write_head(head)
            per_row = sum(block[name].shape[1:].numel() for block in [self._blocks[0].columns()] for name in block)
            for batch in self.batches(max(1, SHARD_ELEMENTS // max(1, per_row))):
                stored = to_storage({name: batch._column(name) for name in batch._names}, dtype)
                writer.append(stored, fingerprint(stored))
            writer.finish()

    @classmethod
    def load(cls, path: str | Path) -> "Features":
        """Open a feature store: takes milliseconds whatever its size; rows are memory-mapped when used."""
        store = Store(Path(path))
        head = Head(**store.head) if store.head else None
        return cls._trusted(store.shards, store.columns, head)
