"""Work divided among many processes.

In a script that torchrun starts, or that has initialised a process group of its own::

    with ood.distributed.join() as processes:
        features = ood.extract(model, loader, store="features/train", processes=processes)
        detector = ood.distributed.fit(ood.DICE(p=0.9), features, processes)

Every process runs the same lines and ends up with the same features and detector. ``oodles.distributed.ray`` does the
same with Ray Data.
"""

from oodles.distributed.fitting import fit
from oodles.processes import Processes, join

__all__ = ["Processes", "fit", "join"]
