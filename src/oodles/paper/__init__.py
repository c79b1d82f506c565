"""What only concerns the DICE paper: its published numbers, tables and figures, the sweep over p, its theory.

The names load on first use, because the published numbers do not need torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
