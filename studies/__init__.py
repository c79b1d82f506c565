"""Benchmarks, and pages and files that are made from measurements: ``python -m studies NAME``.

A study is a module or a package with a function ``main``, whose parameters are its options. Other modules are shared.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("OODLES_DATA", ROOT.parent / "shared" / "data"))
"""The unpacked datasets, and ``checkpoints/`` with the DICE authors' networks."""
STORE = Path("oodles-store")
"""Features are extracted into this folder once, and reused."""

sys.path.append(str(ROOT / "tests"))  # several studies share their cases with the tests
