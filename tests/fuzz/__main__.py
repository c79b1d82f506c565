"""``python -m tests.fuzz [NAME ...] [--rounds N] [--seed S]``: run some or all attacks, print a table."""

import argparse
import os
import sys
import time
from pathlib import Path

from studies.pages import write_page

from . import KINDS, attack, bad, table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Seeded attacks, each in child processes."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *KINDS], help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, help="rounds of each kind; default: as many as the kind says")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-page", action="store_true", help="write docs/reliability.md")
    given = parser.parse_args()
    if given.write_page and (given.rounds or given.names):
        parser.error("--write-page needs every round of every kind; leave out names and --rounds")
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.append(str(Path(__file__).parents[1]))  # for tests/support
    begin = time.monotonic()
    results = {}
    for name in given.names or KINDS:
        results[name] = attack(f"{__package__}.{name}", given.rounds, given.seed, os.cpu_count() or 1)
        print(f"{name}: {dict(results[name])}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    if given.write_page:
        minutes = f"{(time.monotonic() - begin) / 60:.0f}"
        write_page("reliability", table=table(results), minutes=minutes, seed=given.seed)
    sys.exit(1 if bad(results) else 0)


if __name__ == "__main__":
    main()
