"""``python -m tests.fuzz [NAME ...] [--rounds N | --minutes M] [--seed S]``: run some or all attacks, print a table."""

import argparse
import os
import sys
import time
from pathlib import Path

from . import KINDS, attack, bad, table
from .page import complete


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Seeded attacks, each in child processes."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(KINDS)}; all if none is named")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--rounds", type=int, help="rounds of each kind; default: as many as the kind says")
    bound.add_argument("--minutes", type=float, help="time for all kinds together instead of a number of rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--write-page", action="store_true", help="write docs/reliability.md; rows of kinds that are not named are kept"
    )
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in KINDS]
    if unknown:
        parser.error(f"{unknown[0]!r} must be one of {', '.join(KINDS)}")
    if given.write_page and (given.rounds or given.minutes):
        parser.error("--write-page needs every round; leave out --rounds and --minutes")
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.append(str(Path(__file__).parents[1]))  # for tests/support
    names = given.names or KINDS
    minutes = None if given.minutes is None else given.minutes / len(names)
    begin = time.monotonic()
    results = {}
    for name in names:
        results[name] = attack(f"{__package__}.{name}", given.rounds, given.seed, minutes, given.processes)
        print(f"{name}: {dict(results[name])}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    if given.write_page:
        from studies.pages import DOCS, write_page

        elapsed = (time.monotonic() - begin) / 60
        write_page("reliability", **complete((DOCS / "reliability.md").read_text(), results, elapsed, given.seed))
    sys.exit(1 if bad(results) else 0)


if __name__ == "__main__":
    main()
