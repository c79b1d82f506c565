"""A guard outside of Python training code: exported to ONNX, checked, and run without torch.

What reads and runs an exported guard (:mod:`oodles.deploy.artefact`, :mod:`oodles.deploy.exported`) needs NumPy and
onnxruntime alone; what makes one needs torch. Nothing here fits, scores or decides by itself.
"""
