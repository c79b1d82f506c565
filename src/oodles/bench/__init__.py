"""The benchmark: readers, suites, rows, and views of rows."""

from oodles.bench.run import benchmark
from oodles.bench.suites import SUITES, Suite, suite

__all__ = ["SUITES", "Suite", "benchmark", "suite"]
