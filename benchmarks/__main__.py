"""Run them all: ``python -m benchmarks``."""

from benchmarks import detectors, dice, extraction, metrics, suite

if __name__ == "__main__":
    for module in (dice, detectors, metrics, extraction, suite):
        module.main()
