"""Every attack of ``make fuzz`` for a short time, and the counting itself."""

import random
from collections import Counter
from importlib import import_module

import fuzz
import pytest
from support import misbehaving
from support.networks import one_thread  # noqa: F401

SEED = 0


@pytest.mark.usefixtures("one_thread")  # a forked process cannot use the threads of its parent
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_short_attack_finds_nothing(kind, tmp_path):
    counts = fuzz.run(f"fuzz.{kind}", import_module(f"fuzz.{kind}").SHORT, SEED, tmp_path)
    assert counts.total() > 0
    assert fuzz.bad({kind: counts}) == 0, counts


def test_crashes_hangs_tracebacks_and_too_much_memory_are_counted():
    cases = [misbehaving.chosen(random.Random(f"{seed} 0")) for seed in range(misbehaving.ROUNDS)]
    assert {*cases} == {*misbehaving.OUTCOMES}
    counts = fuzz.attack("support.misbehaving", processes=2)
    assert counts == Counter(misbehaving.OUTCOMES[case] for case in cases)
    assert fuzz.bad({"misbehaving": counts}) == sum(case not in ("accept", "refuse") for case in cases)


def test_the_table_has_a_row_for_each_part():
    results = {"command_lines": Counter({"refused": 1200, "crash": 1}), "kills": Counter({"save: accepted": 3})}
    header, _, *rows = fuzz.table(results).splitlines()
    assert header == "| kind | cases | refused | accepted | crash | hang | traceback | accepted non-finite |"
    assert rows == [
        "| command lines | 1,201 | 1,200 | 0 | 1 | 0 | 0 | 0 |",
        "| kills: save | 3 | 0 | 3 | 0 | 0 | 0 | 0 |",
    ]
