"""Makes torchvision importable where its compiled operators were built for another torch: its networks need none."""

import sys
from contextlib import suppress

from torch.library import Library

try:
    with suppress(ModuleNotFoundError):
        import torchvision
except RuntimeError:  # "operator torchvision::nms does not exist"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    LIBRARY = Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
