"""A guard outside of Python training code: saved, exported to ONNX, opened again, and run on files.

Reading and running an exported guard (:mod:`oodles.deploy.artefact`, :mod:`oodles.deploy.exported`) and scoring files
with it needs NumPy and onnxruntime; saved guards and exporting need torch. Nothing here fits a detector.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
