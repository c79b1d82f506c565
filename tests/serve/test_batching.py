"""Micro-batches beside the plain rule: every input is answered once, alone or with others of its key."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oodles.deploy.artefact import Arrays
from oodles.serve.batching import Batcher

BAD = -1


class Network:
    """Doubles every number, or fails if one of them is BAD, once ``open`` is set; remembers what it was given."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[tuple[int, list[list[int]]]] = []

    def __call__(self, key: int, parts: Sequence[Arrays]) -> list[list[int]]:
        assert self.open.wait(60)
        rows = [part["x"].tolist() for part in parts]
        self.batches.append((key, rows))
        if BAD in chain(*rows):
            raise ValueError("a bad row")
        return [[2 * value for value in part] for part in rows]


def inputs(values: list[int]) -> Arrays:
    return {"x": np.array(values)}


items = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(BAD, 5), min_size=1, max_size=6), st.booleans()), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(items=items, max_batch=st.integers(1, 8))
def test_every_input_gets_its_own_answer(items: list[tuple[int, list[int], bool]], max_batch: int) -> None:
    network = Network()
    batcher: Batcher[int, list[int]] = Batcher(network, max_batch=max_batch, max_wait=0.0)
    # while the network waits with this one, the others collect
    first = batcher.submit(9, inputs([7]))
    while not first.running():
        time.sleep(0.0005)
    futures = [batcher.submit(key, inputs(values)) for key, values, _ in items]
    cancelled = [future.cancel() for future, (_, _, cancel) in zip(futures, items, strict=True) if cancel]
    assert all(cancelled)
    network.open.set()
    batcher.close()
    assert first.result(0) == [14]
    for future, (_, values, cancel) in zip(futures, items, strict=True):
        if cancel:
            with pytest.raises(CancelledError):
                future.result(0)
        elif BAD in values:
            with pytest.raises(ValueError, match="a bad row"):
                future.result(0)
        else:
            assert future.result(0) == [2 * value for value in values]  # the slow twin
    asked = [(key, values) for key, values, cancel in items if not cancel]
    for key, batch in network.batches[1:]:
        assert len(batch) == 1 or sum(map(len, batch)) <= max_batch
        assert all((key, values) in asked for values in batch), "keys are never mixed, cancelled inputs left out"
    together = [batch for _, batch in network.batches if len(batch) > 1 and BAD in chain(*batch)]
    assert sum(len(batch) for _, batch in network.batches[1:]) == len(asked) + sum(map(len, together))


def test_a_batch_is_run_as_soon_as_it_is_full() -> None:
    network = Network()
    network.open.set()
    batcher: Batcher[int, list[int]] = Batcher(network, max_batch=4, max_wait=60.0)
    futures = [batcher.submit(0, inputs([n])) for n in range(4)]
    assert [future.result(30) for future in futures] == [[2 * n] for n in range(4)]
    assert network.batches == [(0, [[0], [1], [2], [3]])]
    waiting = batcher.submit(0, inputs([5]))
    assert not waiting.done()
    batcher.close()
    assert waiting.result(0) == [10], "closing answers what waits"
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(0, inputs([1]))


def test_an_input_waits_for_others_only_so_long() -> None:
    network = Network()
    network.open.set()
    batcher: Batcher[int, list[int]] = Batcher(network, max_batch=100, max_wait=0.05)
    assert batcher.submit(0, inputs([1])).result(30) == [2]
    batcher.close()
