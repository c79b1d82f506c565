"""Everything that touches a model: observing its forward pass, finding its head, input gradients, extraction.

Detectors and metrics do not belong here; they work on what comes out.
"""
