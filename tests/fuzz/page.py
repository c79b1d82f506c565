"""docs/reliability.md: the table of all attacks, of which a run may have repeated only some."""

import re
from collections import Counter

from . import KINDS, table

STATED = re.compile(r"`make fuzz` \((\d+) minutes, seed (\d+)\)")


def complete(page: str, results: dict[str, Counter[str]], minutes: float, seed: int) -> dict[str, object]:
    """What the page is filled with: the rows of ``results``, those of the page for every other kind, and the minutes.

    The minutes are those of a run of all kinds, so what a kind took is added if the page does not have it yet.
    """
    new, header = _rows(table(results)), table(results).splitlines()[:2]
    if new.keys() == {_title(name) for name in KINDS}:
        return {"table": table(results), "minutes": f"{minutes:.0f}", "seed": seed}
    old, stated = _rows(page), STATED.search(page)
    missing = [name for name in KINDS if _title(name) not in old | new]
    if stated is None or missing or int(stated[2]) != seed:
        raise SystemExit(f"the page has no rows for {missing} with seed {seed}; run all attacks: make fuzz")
    added = 0 if new.keys() <= old.keys() else minutes
    rows = [row for name in KINDS for row in (old | new)[_title(name)]]
    return {"table": "\n".join([*header, *rows]), "minutes": f"{int(stated[1]) + added:.0f}", "seed": seed}


def _title(name: str) -> str:
    return name.replace("_", " ")


def _rows(page: str) -> dict[str, list[str]]:
    """The rows of a table by their kind."""
    rows: dict[str, list[str]] = {}
    for line in page.splitlines():
        kind = re.match(r"\| ([a-z ]+)(: [^|]*)? \| [\d,]+ \|", line)
        if kind is not None:
            rows.setdefault(kind[1], []).append(line)
    return rows
