"""Batches of every kind as calls of the model and labels, by what its ``forward`` takes."""

from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from oodles.data.batches import BatchReader, as_labels, first_batches, first_images
from oodles.errors import ArgumentError, DataError

X, A, B, EXTRA = torch.rand(4, 3), torch.rand(4, 2), torch.rand(4, 5), torch.rand(4, 1)
Y, IDS, MASK = torch.tensor([2, 0, 1, 1]), torch.arange(12).view(4, 3), torch.ones(4, 3, dtype=torch.long)
PACKED = pack_sequence([torch.rand(length, 2) for length in (1, 3, 2, 1)], enforce_sorted=False)
Pair = namedtuple("Pair", "images targets")


def forward_x(self, x): ...
def forward_ab(self, a, b): ...
def forward_optional(self, a, b=None): ...
def forward_flag(self, x, *, return_embedding=False): ...
def forward_text(self, input_ids=None, attention_mask=None, labels=None): ...
def forward_wrapper(self, input_ids=None, labels=None, **kwargs): ...
def forward_named(self, *, pixel_values): ...
def forward_named_two(self, *, a, b=None): ...
def forward_anything(self, *args, **kwargs): ...
def forward_any_names(self, **kwargs): ...


def model(forward):
    return type("Model", (nn.Module,), {"forward": forward})()


def read(forward, batch, labels=True):
    (only,) = BatchReader(model(forward), labels).read([batch])
    return only


def check(got, args, kwargs, labels):
    inputs, found = got
    assert len(inputs.args) == len(args)
    assert all(mine is theirs for mine, theirs in zip(inputs.args, args, strict=True))
    assert inputs.kwargs.keys() == kwargs.keys()
    assert all(inputs.kwargs[name] is value for name, value in kwargs.items())
    assert found is None if labels is None else torch.equal(found, labels)


# Tuples and tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "batch", "args", "labels"),
    [
        pytest.param(forward_x, X, (X,), None, id="a tensor"),
        pytest.param(forward_x, (X,), (X,), None, id="a tensor in a tuple"),
        pytest.param(forward_x, (X, Y), (X,), Y, id="(x, y)"),
        pytest.param(forward_x, [X, Y.tolist()], (X,), Y, id="[x, y] with labels as a list"),
        pytest.param(forward_x, (X, Y.numpy()), (X,), Y, id="labels as an array"),
        pytest.param(forward_x, Pair(X, Y), (X,), Y, id="a named tuple"),
        pytest.param(forward_x, (X, None), (X,), None, id="(x, None)"),
        pytest.param(forward_x, (X, Y, EXTRA), (X,), Y, id="(x, y, extra)"),
        pytest.param(forward_x, (X, Y, ["1.png", "2.png", "3.png", "4.png"]), (X,), Y, id="(x, y, names)"),
        pytest.param(forward_flag, (X, Y, EXTRA), (X,), Y, id="(x, y, extra) for forward(x, *, flag)"),
        pytest.param(forward_ab, (A, B), (A, B), None, id="(a, b) for forward(a, b)"),
        pytest.param(forward_ab, (A, B, Y), (A, B), Y, id="(a, b, y)"),
        pytest.param(forward_ab, (A, B, Y, EXTRA), (A, B), Y, id="(a, b, y, extra)"),
        pytest.param(forward_ab, ((A, B), Y), (A, B), Y, id="((a, b), y)"),
        pytest.param(forward_ab, [[A, B], Y], (A, B), Y, id="[[a, b], y]"),
        pytest.param(forward_ab, ((A, B),), (A, B), None, id="((a, b),)"),
        pytest.param(forward_optional, (A, Y), (A,), Y, id="(a, y) for forward(a, b=None)"),
        pytest.param(forward_optional, ((A, B), Y), (A, B), Y, id="((a, b), y) for forward(a, b=None)"),
        pytest.param(forward_text, (IDS, Y), (IDS,), Y, id="(ids, y)"),
        pytest.param(forward_anything, (X, Y), (X,), Y, id="(x, y) for forward(*args)"),
        pytest.param(forward_x, PACKED, (PACKED,), None, id="a packed sequence"),
        pytest.param(forward_x, (PACKED, Y), (PACKED,), Y, id="(packed, y)"),
    ],
)
def test_tuples_are_read_by_how_many_inputs_forward_requires(forward, batch, args, labels):
    check(read(forward, batch), args, {}, labels)
    check(read(forward, batch, labels=False), args, {}, None)


@pytest.mark.parametrize(
    ("forward", "batch", "position", "args"),
    [
        (forward_text, (IDS, MASK, Y), 2, (IDS, MASK)),
        (forward_text, (IDS, MASK, Y), -1, (IDS, MASK)),
        (forward_x, (Y, X), 0, (X,)),
        (forward_x, (X, EXTRA, Y), 2, (X,)),
        (forward_x, (X, Y, EXTRA), 1, (X,)),
        (forward_optional, (A, B, Y), 2, (A, B)),
        (forward_optional, ((A, B), Y), 1, (A, B)),
        (forward_ab, (Y, (A, B)), 0, (A, B)),
        (forward_anything, (A, B, Y), 2, (A, B)),
    ],
)
def test_labels_may_be_at_a_position(forward, batch, position, args):
    check(read(forward, batch, position), args, {}, Y)


@pytest.mark.parametrize("position", [3, -4, 99])
def test_a_position_outside_the_batch_is_refused(position):
    with pytest.raises(ArgumentError, match=rf"labels={position} is not a position in a batch of 3 items"):
        read(forward_text, (IDS, MASK, Y), position)


@pytest.mark.parametrize(
    ("forward", "batch"),
    [
        (forward_text, (IDS, MASK, Y)),
        (forward_optional, (A, B, Y)),
        (forward_anything, (A, B, Y)),
        (forward_named_two, (A, B, Y)),
    ],
)
@pytest.mark.parametrize("labels", [True, False])
def test_tuples_that_could_be_read_in_two_ways_are_refused(forward, batch, labels):
    with pytest.raises(DataError, match=r"gave 3 items, and Model\.forward takes 1 .*labels=2"):
        read(forward, batch, labels)


# Mappings ---------------------------------------------------------------------------------------


TOKENS = {"input_ids": IDS, "attention_mask": MASK}


@pytest.mark.parametrize(
    ("forward", "batch", "args", "kwargs", "labels"),
    [
        pytest.param(forward_text, TOKENS, (), TOKENS, None, id="by name"),
        pytest.param(forward_text, {**TOKENS, "labels": Y}, (), TOKENS, Y, id="labels are no input, even if taken"),
        pytest.param(forward_text, {**TOKENS, "label": Y}, (), TOKENS, Y, id="label"),
        pytest.param(forward_text, {**TOKENS, "label": Y, "idx": Y}, (), TOKENS, Y, id="other columns"),
        pytest.param(
            forward_text, UserDict({**TOKENS, "labels": Y}), (), TOKENS, Y, id="a BatchEncoding is a UserDict"
        ),
        pytest.param(forward_text, OrderedDict(TOKENS), (), TOKENS, None, id="an ordered one"),
        pytest.param(forward_text, (TOKENS, Y), (), TOKENS, Y, id="(mapping, y)"),
        pytest.param(forward_text, ({**TOKENS, "labels": Y},), (), TOKENS, Y, id="(mapping with labels,)"),
        pytest.param(forward_x, {"image": X, "label": Y}, (X,), {}, Y, id="image for forward(x)"),
        pytest.param(forward_x, {"pixel_values": X, "path": "a.png"}, (X,), {}, None, id="pixel_values for forward(x)"),
        pytest.param(forward_x, {"numbers": X, "labels": Y}, (X,), {}, Y, id="the only column for forward(x)"),
        pytest.param(forward_x, ({"image": X}, Y), (X,), {}, Y, id="(mapping, y) for forward(x)"),
        pytest.param(forward_named, {"pixel_values": X}, (), {"pixel_values": X}, None, id="keyword-only"),
        pytest.param(forward_named, X, (), {"pixel_values": X}, None, id="a tensor for keyword-only"),
        pytest.param(forward_named, (X, Y), (), {"pixel_values": X}, Y, id="(x, y) for keyword-only"),
        pytest.param(forward_named, {"image": X}, (), {"pixel_values": X}, None, id="another name for keyword-only"),
        pytest.param(forward_named_two, {"a": A, "b": B}, (), {"a": A, "b": B}, None, id="two keyword-only"),
        pytest.param(forward_any_names, {**TOKENS, "labels": Y}, (), TOKENS, Y, id="forward(**kwargs)"),
        pytest.param(
            forward_wrapper, {**TOKENS, "labels": Y}, (), TOKENS, Y, id="a wrapper passes on what it does not name"
        ),
        pytest.param(forward_wrapper, {**TOKENS, "text": ["a"] * 4}, (), TOKENS, None, id="a wrapper gets no texts"),
    ],
)
def test_mappings_are_read_by_the_names_of_forwards_parameters(forward, batch, args, kwargs, labels):
    check(read(forward, batch), args, kwargs, labels)
    check(read(forward, batch, labels=False), args, kwargs, None)


def test_labels_may_be_under_another_key():
    check(read(forward_text, {**TOKENS, "target": Y}, "target"), (), TOKENS, Y)
    check(read(forward_text, {**TOKENS, "target": Y, "labels": Y + 9}, "target"), (), TOKENS, Y)
    check(read(forward_text, ({**TOKENS, "target": Y},), "target"), (), TOKENS, Y)
    check(read(forward_any_names, {**TOKENS, "target": Y}, "target"), (), TOKENS, Y)
    with pytest.raises(ArgumentError, match="labels='targets' is not in the batch"):
        read(forward_text, {**TOKENS, "target": Y}, "targets")


def test_a_key_is_not_a_position_and_a_position_no_key():
    """Else the labels would silently be others than those asked for."""
    with pytest.raises(ArgumentError, match="labels='target' is a key, but the batch is a tuple"):
        read(forward_x, (X, Y), "target")
    with pytest.raises(ArgumentError, match="labels=1 is a position, but keys name the items"):
        read(forward_x, {"image": X, "labels": Y}, 1)


@pytest.mark.parametrize("batch", [{"a": A, "b": B, "labels": Y}, {"labels": Y}, {}])
def test_a_mapping_that_forward_does_not_take_is_refused(batch):
    names = ", ".join(name for name in batch if name != "labels") or "no inputs"
    with pytest.raises(DataError, match=rf"gave {names}, none of which Model\.forward takes \(x\)"):
        read(forward_x, batch)


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["a.png", ["a.png", "b.png"], 3, (), None, {"x": "a.png"}, np.zeros((4, 3)), Y])
def test_batches_without_a_tensor_of_rows_are_refused(batch):
    with pytest.raises(DataError, match="the loader gave"):
        read(forward_x, batch)


def test_a_dataset_in_place_of_a_loader_is_refused_with_the_remedy():
    """Iterating it gives single examples, whose first dimension would be taken for rows."""
    dataset = TensorDataset(X, Y)
    for wrong in (dataset, Subset(dataset, [0, 1])):
        name = type(wrong).__name__
        with pytest.raises(DataError, match=rf"{name} is a Dataset, .*\.DataLoader\(dataset"):
            list(BatchReader(model(forward_x)).read(wrong))
    loader = DataLoader(dataset, batch_size=3)
    assert [len(inputs) for inputs, _ in BatchReader(model(forward_x)).read(loader)] == [3, 1]


def test_a_dataset_that_yields_batches_itself_is_read():
    class Batches(IterableDataset):
        def __iter__(self):
            return iter([(X, Y)])

    (only,) = BatchReader(model(forward_x)).read(Batches())
    check(only, (X,), {}, Y)


def test_a_model_without_a_signature_is_assumed_to_take_one_input():
    check(read(print.__class__, (X, Y, EXTRA)), (X,), {}, Y)  # a built-in type, of which nothing is known


# Labels -----------------------------------------------------------------------------------------


SEVERAL = torch.tensor([[1, 0, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    "labels",
    [
        *(Y.to(kind) for kind in (torch.int64, torch.int32, torch.uint8)),
        *(SEVERAL.to(kind) for kind in (torch.int64, torch.float32, torch.bool)),
    ],
    ids=lambda labels: f"{labels.dtype} {tuple(labels.shape)}",
)
def test_labels_are_integers_or_zeros_and_ones_per_class_of_any_kind(labels):
    assert torch.equal(as_labels(labels, len(labels)), labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "dog"] * 2, r"labels that are not numbers \(list\); give class indices, or pass labels=False"),
        ({"boxes": X}, r"labels that are not numbers \(dict\)"),
        (Y[:3], "4 inputs with 3 labels"),
        (Y.float(), r"must be integers, one per input, the loader gave torch.float32 of shape \(4,\); pass labels="),
        (3, r"one per input, the loader gave torch.int64 of shape \(\)"),
        (Y[:, None], r"one per input, the loader gave torch.int64 of shape \(4, 1\)"),
        (2 * torch.ones(4, 1), r"one per input, the loader gave torch.float32 of shape \(4, 1\)"),
        (torch.rand(4, 3), r"one per input, the loader gave torch.float32 of shape \(4, 3\)"),
        (torch.ones(4, 3, 2), r"one per input, the loader gave torch.float32 of shape \(4, 3, 2\)"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        as_labels(labels, 4)
    check(read(forward_x, (X, labels), labels=False), (X,), {}, None)


# The first rows of a loader ---------------------------------------------------------------------


IMAGES, LABELS = torch.arange(20.0).view(10, 2), torch.arange(10)
READER = BatchReader(model(forward_x))


def pairs():
    return zip(IMAGES.split(4), LABELS.split(4), strict=True)


@pytest.mark.parametrize("count", [1, 4, 5, 10, 99])
def test_first_images_may_span_several_batches_and_reads_no_more_than_it_needs(count):
    batches = iter(pairs())
    images, labels = first_images(READER, batches, count)
    assert torch.equal(images, IMAGES[:count])
    assert torch.equal(labels, LABELS[:count])
    assert len(list(batches)) == {1: 2, 4: 2, 5: 1}.get(count, 0)


def test_labels_are_given_only_if_wanted_and_known_for_every_batch():
    assert first_images(BatchReader(model(forward_x), labels=False), pairs(), 5)[1] is None
    assert first_images(READER, IMAGES.split(4), 5)[1] is None
    assert first_images(READER, [(IMAGES[:4], LABELS[:4]), IMAGES[4:]], 5)[1] is None
    assert first_images(READER, [(IMAGES[:4], torch.ones(4, 3))], 3)[1] is None, "classes that are not exclusive"


def test_images_are_one_floating_point_tensor():
    with pytest.raises(DataError, match="the loader gave no batch"):
        first_images(READER, [], 5)
    images, labels = first_images(READER, [{"image": IMAGES, "label": LABELS}], 3)
    assert torch.equal(images, IMAGES[:3])
    assert torch.equal(labels, LABELS[:3])
    text, numbers = BatchReader(model(forward_text)), BatchReader(model(forward_ab))
    refused = r"made from images, the loader gave {}; make them from embeddings"
    with pytest.raises(DataError, match=refused.format(r"input_ids \(int64 .*, attention_mask \(int64 \(3, 3\)\)")):
        first_images(text, [TOKENS], 3)
    with pytest.raises(DataError, match=refused.format(r"images \(float32 \(3, 2\)\), input 1 \(float32 \(3, 5\)\)")):
        first_images(numbers, [(A, B)], 3)


@pytest.mark.parametrize("count", [1, 5, 8, 99])
def test_the_first_rows_keep_every_input_and_their_batches(count):
    batches = [{**TOKENS, "labels": Y}, {"input_ids": IDS + 50, "attention_mask": MASK, "labels": Y + 1}]
    kept = list(first_batches(BatchReader(model(forward_text)), batches, count))
    assert [len(inputs) for inputs, _ in kept] == [size for size in (min(count, 4), min(count - 4, 4)) if size > 0]
    ids = torch.cat([inputs.kwargs["input_ids"] for inputs, _ in kept])
    assert torch.equal(ids, torch.cat([IDS, IDS + 50])[:count])
    assert torch.equal(torch.cat([labels for _, labels in kept]), torch.cat([Y, Y + 1])[:count])
    assert all(len(inputs.kwargs["attention_mask"]) == len(inputs) for inputs, _ in kept)
