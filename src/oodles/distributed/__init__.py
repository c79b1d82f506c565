"""Divide work among many processes.

In a script that torchrun starts, or that has initialised a process group of its own::

    with ood.distributed.join() as processes:
        features = ood.extract(model, loader, store="features/train", processes=processes)
        detector = ood.distributed.fit(ood.DICE(p=0.9), features, processes)

Every process runs the same lines and ends up with the same features and detector. ``oodles.distributed.ray`` does the
same with Ray Data. ``processes`` is below everything that can be shared out; the rest is above it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
