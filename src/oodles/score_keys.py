"""Integers that sort like scores and say which of them are OOD, so that one sort is enough for every metric."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def score_keys(ids: Array, oods: Array) -> Array:
    """An unsigned integer for each score: the score's rank among all possible ones, doubled, plus 1 if it is OOD.

    So no permutation has to be carried through the sort, and among equal scores ID comes first.
    """
    kind = np.result_type(ids, oods)
    both = np.concatenate([ids, oods], dtype=np.float32 if kind == np.float16 else kind)
    order = _order(both) if both.dtype in (np.float32, np.float64) else None
    if order is None:
        order = np.unique(np.concatenate([ids, oods]), return_inverse=True)[1]
    keys: Array = order.view(np.dtype(f"u{order.itemsize}"))
    keys <<= 1
    keys[len(ids) :] |= 1
    return keys


def _order(scores: Array) -> Array | None:
    """Integers from 0 in the order of the scores, in their place; None if their range needs every bit.

    The bits of a float, read as an integer, are in its order, once those of negative ones are negated.
    """
    size: Array = scores.view(np.dtype(f"i{scores.itemsize}"))
    most = np.iinfo(size.dtype).max
    sign = size >> (8 * size.itemsize - 1)
    size &= most
    # nothing lies between zero and the smallest size: without that gap, the range hardly ever needs every bit
    gap = size.min() - 1
    if gap < 0:
        gap = np.min(size, where=size > 0, initial=most) - 1
        np.maximum(size, gap, out=size)
    size -= gap
    size ^= sign
    size -= sign
    low, high = size.min(), size.max()
    size -= low
    return size if int(high) - int(low) <= most else None
