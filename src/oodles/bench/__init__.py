"""The benchmark: a runner, suites of image sets, and tables. What only the DICE paper needs is in ``paper``."""

from oodles.bench.run import benchmark
from oodles.bench.suites import OPENOOD, SUITES, Suite, suite

__all__ = ["OPENOOD", "SUITES", "Suite", "benchmark", "suite"]
