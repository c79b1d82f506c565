"""Run them all: ``python -m benchmarks``."""

from benchmarks import detectors, dice, extraction, metrics, neighbours, suite

if __name__ == "__main__":
    for module in (dice, detectors, neighbours, metrics, extraction, suite):
        module.main()
