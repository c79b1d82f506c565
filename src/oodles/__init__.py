"""oodles detects when a classifier is given an input unlike its training data, without retraining it.

>>> import oodles as ood
>>> ood.parse("react(90)+dice(0.7)").spec
'react(90)+dice(0.7)+energy'

The public names are in ``__init__.pyi``; each loads on first use, so ``import oodles`` does not wait for torch, which
need not be installed to run an exported guard.
"""

import gc
import sys
from importlib import import_module
from typing import Any

import lazy_loader

from oodles.errors import MissingPackageError
from oodles.extras import needed_by

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name on first use; without PyTorch, ``Guard`` is the class that runs exported guards."""
    pause = gc.isenabled() and "torch" not in sys.modules
    if pause:  # torch's objects stay: every pass over them while it is imported finds nothing
        gc.disable()
    try:
        with needed_by(f"oodles.{name}"):
            return _load(name)
    except MissingPackageError as missing:
        if (name, missing.name) != ("Guard", "torch"):
            raise
    finally:
        if pause:
            gc.enable()
    with needed_by("oodles.Guard without PyTorch"):
        return import_module("oodles.deploy.exported").ExportedGuard
