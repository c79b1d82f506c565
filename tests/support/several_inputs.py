"""Small classifiers of text, tables and sequences, whose inputs are not one image, and batches for them.

Each has ``hidden(**inputs)``, the embedding, and ``head``, the last layer.
"""

from typing import Any

import torch
from support.networks import CLASSES, WIDTH, Body
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

ROWS, BATCH = 18, 6


class Text(nn.Module):
    """The mean over the tokens that are not masked."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        summed = (self.table(input_ids) * mask[..., None]).sum(dim=1)
        return (summed / mask.sum(dim=1, keepdim=True)).tanh()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Any = None) -> Tensor:
        assert labels is None, "labels are no input"
        return self.head(self.hidden(input_ids, attention_mask))


class Table(nn.Module):
    """Numbers and categories of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.categories = nn.Linear(4, WIDTH), nn.Embedding(30, 3)
        self.mixed = nn.Linear(WIDTH + 6, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def hidden(self, numbers: Tensor, categories: Tensor) -> Tensor:
        parts = [self.numbers(numbers), self.categories(categories).flatten(1)]
        return self.mixed(torch.cat(parts, dim=1)).relu()

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        return self.head(self.hidden(numbers, categories))


class KeywordOnly(nn.Module):
    """Images that can only be given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.head = nn.Linear(WIDTH, CLASSES)

    def hidden(self, *, pixel_values: Tensor) -> Tensor:
        return self.body.pooled(pixel_values)

    def forward(self, *, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.hidden(pixel_values=pixel_values))}


class Sequences(nn.Module):
    """An LSTM on sequences of different lengths; the embedding is its state after the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def hidden(self, sequences: PackedSequence) -> Tensor:
        return self.lstm(sequences)[1][0][-1]

    def forward(self, sequences: PackedSequence) -> Tensor:
        return self.head(self.hidden(sequences))


def random(*shape: int, seed: int, high: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) if high is None else torch.randint(high, shape, generator=generator)


def inputs_of(kind: type[nn.Module], rows: int = ROWS, *, seed: int = 0) -> dict[str, Any]:
    """Arguments of one call, by name."""
    lengths = 1 + random(rows, seed=seed, high=6)
    if kind is Text:
        mask = (torch.arange(6) < lengths[:, None]).long()
        return {"input_ids": random(rows, 6, seed=seed + 1, high=40), "attention_mask": mask}
    if kind is Table:
        return {"numbers": random(rows, 4, seed=seed), "categories": random(rows, 2, seed=seed + 1, high=30)}
    if kind is KeywordOnly:
        return {"pixel_values": random(rows, 3, 8, 8, seed=seed)}
    steps = [random(int(length), 3, seed=seed + place) for place, length in enumerate(lengths)]
    return {"sequences": pack_sequence(steps, enforce_sorted=False)}


def labels_of(rows: int = ROWS) -> Tensor:
    return random(rows, seed=7, high=CLASSES)


def batches_of(inputs: dict[str, Any], size: int = BATCH) -> list[dict[str, Any]]:
    """The same in batches, with labels, as a loader yields them."""
    rows = next(int(v.batch_sizes[0]) if isinstance(v, PackedSequence) else len(v) for v in inputs.values())
    labels = labels_of(rows)
    return [
        {
            **{name: _rows(value, start, start + size) for name, value in inputs.items()},
            "labels": labels[start : start + size],
        }
        for start in range(0, rows, size)
    ]


def _rows(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, PackedSequence):
        return pack_sequence(unpack_sequence(value)[start:stop], enforce_sorted=False)
    return value[start:stop]
