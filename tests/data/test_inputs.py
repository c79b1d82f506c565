"""``Inputs``: the arguments of a call, row by row, as slow and obvious code would take them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from oodles.columns import fingerprint
from oodles.data.inputs import Inputs
from oodles.errors import DataError

IMAGES, IDS = torch.arange(24.0).view(4, 3, 2), torch.arange(12).view(4, 3)


def packed(lengths, *, seed=0, width=2, enforce_sorted=False):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(length, width, generator=generator) for length in lengths]
    return pack_sequence(rows, enforce_sorted=enforce_sorted), rows


# What a call is made of -------------------------------------------------------------------------


def test_the_model_is_called_with_the_arguments_as_they_are():
    args, kwargs = Inputs((IMAGES, None, 3), {"mask": IDS, "flag": True})(lambda *args, **kwargs: (args, kwargs))
    assert args[0] is IMAGES
    assert args[1:] == (None, 3)
    assert kwargs["mask"] is IDS
    assert kwargs["flag"] is True


def test_arguments_have_names():
    inputs = Inputs((IMAGES, IDS, 0.5), {"mask": IDS, "size": (8, 8)})
    assert list(inputs.named) == ["images", "input 1", "input 2", "mask", "size"]
    assert list(inputs.batched) == ["images", "input 1", "mask"]
    assert list(inputs.floating()) == ["images"]
    assert list(Inputs((), {"input_ids": IDS}).named) == ["input_ids"]


def test_an_argument_by_the_name_of_a_positional_one_hides_none():
    inputs = Inputs((IDS,), {"images": IMAGES})
    assert list(inputs.tensors()) == ["input 0", "images"]
    with pytest.raises(DataError, match=r"differ in rows \(input 0 3, images 4\)"):
        Inputs((IDS[:3],), {"images": IMAGES})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "the model was given nothing; give at least one row of tensors"),
        ((None,), {}, r"the model was given images \(NoneType\)"),
        ((torch.tensor(3.0),), {}, r"the model was given images \(float32 \(\)\)"),
        ((IMAGES[:0],), {}, r"the model was given images \(float32 \(0, 3, 2\)\)"),
        ((IMAGES, IDS[:3]), {}, r"the model's inputs differ in rows \(images 4, input 1 3\); each needs one row"),
        ((), {"input_ids": IDS, "mask": IDS[:1]}, r"differ in rows \(input_ids 4, mask 1\)"),
        ((IMAGES, packed([1, 2, 3])[0]), {}, r"differ in rows \(images 4, input 1 3\)"),
    ],
)
def test_a_call_without_rows_or_with_different_ones_is_refused(args, kwargs, message):
    with pytest.raises(DataError, match=message):
        Inputs(args, kwargs)


@pytest.mark.parametrize(
    "value",
    [["a", "b", "c", "d"], tuple("abcd"), np.zeros(4), (IMAGES, IMAGES), [IMAGES], {"inner": IMAGES}, [1, 2, 3, 4]],
    ids=lambda value: type(value).__name__,
)
def test_what_may_have_rows_but_cannot_be_split_is_refused(value):
    """A list of four texts beside four images would go whole with every piece of the images."""
    for args, kwargs in (((IMAGES, value), {}), ((), {"pixels": IMAGES, "other": value})):
        with pytest.raises(DataError, match=rf"is a {type(value).__name__}; give a tensor"):
            Inputs(args, kwargs)


# Rows -------------------------------------------------------------------------------------------


def test_a_tensor_is_replaced_by_identity():
    other = IMAGES.clone()
    replaced = Inputs((IMAGES, other)).replace(IMAGES, IMAGES + 1)
    assert torch.equal(replaced.args[0], IMAGES + 1)
    assert replaced.args[1] is other


def test_to_moves_tensors_and_leaves_the_rest():
    moved = Inputs((IMAGES, None), {"flag": True, "sequence": packed([1, 2, 1, 1])[0]}).to(torch.device("meta"))
    assert moved.args[0].device.type == moved.kwargs["sequence"].data.device.type == "meta"
    assert moved.args[1] is None
    assert moved.kwargs["flag"] is True


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=7), data=st.data(), seed=st.integers(0, 99))
def test_rows_are_taken_and_split_as_from_a_list_of_sequences(lengths, data, seed):
    sequence, rows = packed(lengths, seed=seed)
    count = len(rows)
    numbers = torch.arange(count)[:, None] * 10 + torch.arange(2)
    inputs = Inputs((sequence,), {"numbers": numbers, "flag": "kept"})

    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=9))
    same_rows(inputs.take(chosen), [rows[row] for row in chosen], numbers[chosen])

    size = data.draw(st.integers(1, count + 1))
    pieces = inputs.split(size)
    assert [len(piece) for piece in pieces] == [min(size, count - start) for start in range(0, count, size)]
    for start, piece in zip(range(0, count, size), pieces, strict=True):
        same_rows(piece, rows[start : start + size], numbers[start : start + size])


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_sorted_and_unsorted_sequences_are_taken_alike(enforce_sorted):
    sequence, rows = packed([5, 4, 4, 1], enforce_sorted=enforce_sorted)
    same_rows(Inputs((sequence,), {"numbers": IDS}).take([3, 0]), [rows[3], rows[0]], IDS[[3, 0]])


def same_rows(inputs, rows, numbers):
    (sequence,) = inputs.args
    assert isinstance(sequence, PackedSequence)
    found = unpack_sequence(sequence)
    assert len(inputs) == len(found) == len(rows)
    for mine, theirs in zip(found, rows, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(inputs.kwargs["numbers"], numbers)
    assert inputs.kwargs.get("flag", "kept") == "kept"


def test_every_argument_with_rows_is_part_of_the_content():
    def digest(**changes):
        parts = {"ids": IDS, "mask": torch.ones(4, 3), "sequence": packed([1, 2, 3, 1])[0], "flag": None}
        return fingerprint(Inputs((IMAGES,), parts | changes).tensors())

    assert digest() == digest()
    mask = torch.ones(4, 3)
    mask[2, 1] = 0
    changed = [
        digest(ids=IDS.flip(0)),
        digest(mask=mask),
        digest(sequence=packed([1, 2, 3, 1], seed=1)[0]),
        digest(sequence=packed([1, 3, 2, 1])[0]),
        digest(flag=IDS),
    ]
    assert len({digest(), *changed}) == 6
