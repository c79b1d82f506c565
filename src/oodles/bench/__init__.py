"""The benchmark: a runner, suites of image sets, and tables. What only the DICE paper needs is in ``paper``.

The names load on first use, because tables of rows do not need torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
