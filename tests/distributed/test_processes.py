"""Processes that work together: what they exchange, and that one that fails ends all."""

import pytest
from support.processes import exchange, launch, own_group

from oodles.distributed.processes import Processes, current, join, own_device


@pytest.mark.parametrize("size", [2, 3])
def test_values_are_exchanged_in_the_order_of_the_ranks(size):
    outcomes = launch(size, exchange, False)
    assert [outcome.error for outcome in outcomes] == [""] * size
    for rank, (met, collected, handed, share) in enumerate(outcome.value for outcome in outcomes):
        assert met == [0, 10, 20][:size]
        assert collected == ([0, 1, 2][:size] if rank == 0 else [])
        assert handed == "from 0"
        assert list(share) == {2: [[0, 1, 2, 3], [4, 5, 6]], 3: [[0, 1, 2], [3, 4], [5, 6]]}[size][rank]


def test_an_error_in_one_process_is_raised_in_all():
    outcomes = launch(3, exchange, True)
    assert outcomes[1].error == "ValueError: a bug\nin two lines"
    for rank in (0, 2):
        assert outcomes[rank].error == "OodlesError: process 1 of 3 failed: ValueError: a bug"


def test_a_script_keeps_its_own_process_group(tmp_path):
    outcomes = launch(2, own_group, tmp_path)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert [outcome.value for outcome in outcomes] == [[(0, 46), (0, 46)], [(1, 46), (1, 46)]]


def test_a_process_on_its_own_exchanges_nothing():
    with join() as processes:
        assert processes == current() == Processes()
    assert [processes.all_gather(1), processes.gather(2), processes.broadcast(3)] == [[1], [2], 3]
    assert list(processes.share(range(3))) == [0, 1, 2]
    with pytest.raises(ValueError, match="own"), processes.raise_together():
        raise ValueError("own")


@pytest.mark.parametrize(
    ("device", "expected"), [(None, None), ("cpu", "cpu"), ("cuda:0", "cuda:0"), ("cuda", "cuda:2")]
)
def test_each_process_has_a_gpu_of_its_own(device, expected, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert own_device(device) is None if expected is None else str(own_device(device)) == expected
    monkeypatch.delenv("LOCAL_RANK")
    assert own_device(device) == device
