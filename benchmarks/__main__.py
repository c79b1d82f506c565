"""Run some or all of the benchmarks: ``python -m benchmarks [NAME ...]``."""

import argparse

from benchmarks import detectors, dice, extraction, guard, metrics, neighbours, suite

BENCHMARKS = {
    module.__name__.removeprefix("benchmarks."): module
    for module in (dice, detectors, neighbours, metrics, extraction, guard, suite)
}


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Time and memory, as ratios within one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all if none is named")
    names = parser.parse_args().names
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"{unknown[0]!r} must be one of {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        BENCHMARKS[name].main()


if __name__ == "__main__":
    main()
