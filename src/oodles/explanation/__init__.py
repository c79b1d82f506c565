"""Explain why an input was accepted or rejected.

``findings`` holds the explanation itself and needs no torch; ``explaining`` computes it from a fitted detector. Drawing
explanations does not belong here.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
