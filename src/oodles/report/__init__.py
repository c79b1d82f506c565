"""``oodles report``: benchmark rows, a guard with its calibration set, or scored inputs as one HTML file.

``document`` is what a report consists of and writes it; one module for each kind of source makes its part. The
names load on first use, because only features need torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
