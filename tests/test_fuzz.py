"""Every attack of ``make fuzz`` for a short time, and the counting itself."""

from collections import Counter
from importlib import import_module

import fuzz
import pytest
from fuzz.page import complete

SEED = 0


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_short_attack_finds_nothing(kind, tmp_path):
    attack = import_module(f"fuzz.{kind}")
    counts = attack.run(attack.SHORT, SEED, tmp_path)
    assert counts.total() > 0
    assert fuzz.bad({kind: counts}) == 0, counts


def test_crashes_hangs_tracebacks_and_too_much_memory_are_counted():
    counts = fuzz.attack("support.misbehaving", processes=2)
    assert counts == {"odd: accepted": 1, "odd: refused": 1, "traceback": 2, "hang": 1, "crash": 2}
    assert fuzz.bad({"misbehaving": counts}) == 5


def test_the_table_has_a_row_for_each_part():
    results = {"command_lines": Counter({"refused": 1200, "crash": 1}), "kills": Counter({"save: accepted": 3})}
    header, _, *rows = fuzz.table(results).splitlines()
    assert header == "| kind | cases | refused | accepted | crash | hang | traceback | accepted non-finite |"
    assert rows == [
        "| command lines | 1,201 | 1,200 | 0 | 1 | 0 | 0 | 0 |",
        "| kills: save | 3 | 0 | 3 | 0 | 0 | 0 | 0 |",
    ]


def test_a_page_keeps_the_rows_of_other_kinds():
    everything = {name: Counter({"refused": 1, "accepted": 2}) for name in fuzz.KINDS}
    filled = complete("", everything, minutes=7.4, seed=3)
    assert filled == {"table": fuzz.table(everything), "minutes": "7", "seed": 3}
    page = f"`make fuzz` (7 minutes, seed 3):\n\n{filled['table']}\n"
    again = {"kills": Counter({"part: refused": 5})}
    one = complete(page, again, minutes=2, seed=3)
    assert one["table"] == fuzz.table(everything | again)
    assert one["minutes"] == "7"
    without = "\n".join(line for line in page.splitlines() if not line.startswith("| kills"))
    assert complete(without, again, minutes=2, seed=3) == one | {"minutes": "9"}
    with pytest.raises(SystemExit, match="run all attacks"):
        complete(without, {"specs": Counter({"refused": 5})}, minutes=2, seed=3)
    with pytest.raises(SystemExit, match="run all attacks"):
        complete(page, again, minutes=2, seed=4)
