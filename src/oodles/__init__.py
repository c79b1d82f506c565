"""oodles detects when a classifier is given an input unlike its training data, without retraining it.

>>> import oodles as ood
>>> ood.parse("react(90)+dice(0.7)").spec
'react(90)+dice(0.7)+energy'

The public names are in ``__init__.pyi``; each loads on first use, so ``import oodles`` does not wait for torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
