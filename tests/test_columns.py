"""Columns: the fingerprint of named tensors; their validation is tested with ``Features``."""

import pytest
import torch

from oodles.columns import check_same_columns, fingerprint
from oodles.errors import DataError


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
