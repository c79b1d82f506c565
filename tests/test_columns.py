"""Columns: the fingerprint of named tensors; their validation is tested with ``Features``."""

import numpy as np
import pytest
import torch

from oodles.columns import check_same_columns, fingerprint
from oodles.data.batches import as_labels
from oodles.errors import DataError
from oodles.features import Features


def test_fingerprints_distinguish_names_types_shapes_and_bits():
    ones = torch.ones(2, 3)
    same = {"a": ones, "b": torch.zeros(1)}
    assert fingerprint(same) == fingerprint({"b": torch.zeros(1), "a": torch.ones(3, 2).T})
    others = [
        {"a": ones},
        {"c": ones, "b": torch.zeros(1)},
        {"a": ones.reshape(3, 2), "b": torch.zeros(1)},
        {"a": ones.int(), "b": torch.zeros(1)},
        {"a": ones, "b": -torch.zeros(1)},
    ]
    assert len({fingerprint(tensors) for tensors in [same, *others]}) == 6


def test_columns_of_other_widths_are_refused():
    check_same_columns({"a": torch.ones(2, 3)}, {"a": torch.ones(5, 3)})
    with pytest.raises(DataError, match=r"a has different widths .*\(3,\) and \(4,\)"):
        check_same_columns({"a": torch.ones(2, 3)}, {"a": torch.ones(2, 4)})


@pytest.mark.parametrize("view", [lambda array: array[::-1], lambda array: array.astype(array.dtype.newbyteorder(">"))])
def test_arrays_that_torch_cannot_use_are_copied(view):
    rows, classes = view(np.random.default_rng(0).normal(size=(20, 3))), view(np.arange(20) % 3)
    features = Features(rows, labels=classes)
    assert np.array_equal(features.embedding, rows)
    assert np.array_equal(features.labels, classes)
    assert np.array_equal(as_labels(classes, 20), classes)
    assert np.array_equal(features[view(np.arange(5))].embedding, rows[view(np.arange(5))])
