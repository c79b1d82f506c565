"""Run them all: ``python -m benchmarks``."""

from benchmarks import dice, extraction, metrics, suite

if __name__ == "__main__":
    for module in (dice, metrics, extraction, suite):
        module.main()
