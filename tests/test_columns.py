"""Columns: the fingerprint of named tensors; their validation is tested with ``Features``."""

import torch

from oodles.columns import fingerprint


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
