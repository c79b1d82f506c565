"""``oodles bench cifar10`` with every table, compared with one bare pass of the network over the same images.

Detectors that need further passes are left out, since their cost is that of the passes.
The data is expected in ``OODLES_DATA``, or ``../shared/data``.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from oodles.bench.experiment import Extraction, run_tables
from oodles.bench.suites import SUITES
from oodles.data.loaders import ImageLoader
from oodles.detectors import parse
from oodles.detectors.network_detector import needs_network
from oodles.models import densenet101, load_checkpoint
from oodles.paper.tables import TABLES

LIMIT = int(os.environ.get("OODLES_BENCH_LIMIT", "1000"))


def main() -> None:
    """Print the time of all tables divided by that of the bare pass, without and with features in the store."""
    data = Path(os.environ.get("OODLES_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not data.is_dir():
        print(f"no data at {data}: the suite is not timed")
        return
    record = SUITES["cifar10"]
    network = densenet101(10)
    load_checkpoint(network, data / "checkpoints" / "densenet101-cifar10.pth.tar")
    network.eval()
    train, test = record.open_id(data)
    sets = {name: part.sample(LIMIT) for name, part in {"train": train, "test": test, **record.open_ood(data)}.items()}
    images = [batch[0] for part in sets.values() for batch in ImageLoader(part, record.transform)]

    def bare() -> None:
        with torch.no_grad():
            for batch in images:
                for part in torch.split(batch, 32):
                    network(part.contiguous(memory_format=torch.channels_last))

    main = [spec for spec in record.detectors if not needs_network(parse(spec))]

    def whole(store: Path) -> None:
        features = Extraction(record.transform, store).features(network, sets)
        run_tables(list(TABLES), features, main=main, p=record.p, id_set="cifar10")

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        network(images[0][:32])
        times = [_seconds(bare), _seconds(lambda: whole(store)), _seconds(bare), _seconds(lambda: whole(store))]
    count = sum(len(batch) for batch in images)
    mean = (times[0] + times[2]) / 2
    print(f"bench with all tables takes {times[1] / mean:.2f} times a bare pass over its {count:,} images")
    print(f"again from the store: {times[3] / mean:.3f} times a bare pass ({times[3]:.1f} s)")


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
