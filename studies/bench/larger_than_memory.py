"""Fit and score on a memory-mapped store of ImageNet's size: time against its floor, and the memory it needs.

The store, 5.3 GB, is written to ``--folder`` first; ``--rows`` makes it smaller or larger.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk

from oodles.detectors import parse
from oodles.features import Features
from oodles.records.files import sha256
from oodles.store import open_writer
from studies.bench.results import Row, cost
from studies.data import head_of, rows_of
from studies.memory import in_child, peak_growth
from studies.timing import paired, seconds

ROWS, QUICK_ROWS, WIDTH, CLASSES, SHARD = 1_281_167, 16_384, 2048, 1000, 8192
MAX_MEMORY = 1000.0  # MB beyond what the detector keeps
READ_TARGET, PRODUCT_TARGET = 1.5, 3.0


@dataclass(frozen=True)
class Case:
    """A detector and the work on every row that its fit cannot avoid.

    ``products`` counts m x m second moments of all rows, ``logits`` their products with the head, each as a fraction
    of all rows. Without either, the floor is reading the file.
    """

    spec: str
    products: float = 0.0
    logits: float = 0.0


CASES = (
    Case("dice(0.9)"),
    Case("react(90)"),
    Case("mahalanobis", products=1),
    Case("vim", products=1),
    # ViM, pNML and Mahalanobis learn from the four fifths of the rows that are not held out for the ranks
    Case("default", products=3 * 0.8, logits=1),
)


def run(
    quick: bool = False, rows: int | None = None, folder: Path | None = None, only: str | None = None
) -> Iterator[Row]:
    """Write the store, then fit and score each detector, or those that ``only`` names, in a process of its own."""
    rows = rows or (QUICK_ROWS if quick else ROWS)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = Path(place) / "store"
        write_store(store, rows)
        size = sum(path.stat().st_size for path in store.iterdir()) / 1e9
        for case in [case for case in (CASES[:2] if quick else CASES) if (only or "") in case.spec]:
            found = in_child(
                "studies.bench.larger_than_memory:measure", str(store), case.spec, case.products, case.logits
            )
            yield from _rows(case, f"{rows:,} rows, {size:.1f} GB", found)


def write_store(path: Path, rows: int, width: int = WIDTH, classes: int = CLASSES) -> None:
    """Embeddings in float16 with their labels and head, shard by shard, as an extraction writes them."""
    head = head_of(width, classes)
    with open_writer(path, {"made": "for a benchmark"}) as writer:
        writer.write_head(head)
        for shard, start in enumerate(range(0, rows, SHARD)):
            embedding, labels = rows_of(min(SHARD, rows - start), width, classes, seed=shard)
            writer.append({"embedding": embedding.half(), "labels": labels}, str(shard), (shard, shard + 1))
        writer.finish()


def measure(store: str, spec: str, products: float, logits: float) -> dict[str, Any]:
    """Seconds and peak memory of a fit and of scoring, and the floors; called in a process of its own."""
    files = sorted(Path(store).iterdir())
    parse("energy").score(Features.load(store)[:256])  # what is loaded or allocated once does not count
    detector = parse(spec)
    fits, reads, scores, peaks = [], [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the synthetic rows
        for _ in range(1 if products else 3):
            drop_from_cache(files)
            reads.append(seconds(lambda: _read(files)))
            drop_from_cache(files)
            peaks.append(peak_growth(lambda: fits.append(seconds(lambda: detector.fit(Features.load(store))))))
        drop_from_cache(files)
        score_peak = peak_growth(lambda: scores.append(seconds(lambda: detector.score(Features.load(store)))))
    drop_from_cache(files)
    checked = seconds(lambda: [sha256(path) for path in files])
    return {
        "fits": fits,
        "reads": reads,
        "checked": checked,
        "products": _floor(store, products, logits) if products else 0.0,
        "score_floor": max(_floor(store, 0, 1), min(reads)),
        "score": scores[0],
        "peak": max(peaks) / 1e6,
        "score_peak": score_peak / 1e6,
        "kept": sum(buffer.numel() * buffer.element_size() for buffer in detector.buffers()) / 1e6,
    }


def _floor(store: str, products: float, logits: float) -> float:
    """Seconds of the products alone, for all rows, from those of one shard: the best of several."""
    features = Features.load(store)
    part = features[:SHARD]
    head = features.head
    assert head is not None
    embedding = part.embedding.float()
    wide = np.asfortranarray(embedding.double().numpy().T)
    total = np.zeros((features.width, features.width), order="F")
    times = paired(
        {
            "products": lambda: dsyrk(1.0, wide, beta=1.0, c=total, overwrite_c=True),
            "logits": lambda: head(embedding),
        },
        budget=3.0,
    )
    shards = len(features) / len(part)
    return shards * (products * min(times["products"]) + logits * min(times["logits"]))


def drop_from_cache(files: Sequence[Path]) -> None:
    """Make the system forget the files, so that they are read from disk as files larger than memory are."""
    os.sync()
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _read(files: Sequence[Path]) -> None:
    """Read every byte into one buffer."""
    buffer = bytearray(1 << 24)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _rows(case: Case, size: str, found: dict[str, Any]) -> Iterator[Row]:
    name = case.spec.partition("(")[0]
    peak, kept = found["peak"], found["kept"]
    reads = {"ours": found["fits"], "read": found["reads"]}
    if found["products"]:
        floor = {"ours": found["fits"], "products": [found["products"]] * len(found["fits"])}
        yield cost(f"fit {name}, {size}", "its matrix products", floor, target=PRODUCT_TARGET, memory=peak)
        yield cost(f"fit {name}, {size}", "reading the file", reads)
    else:
        yield cost(f"fit {name}, {size}", "reading the file", reads, target=READ_TARGET, memory=peak)
        checks = {"ours": found["fits"], "check": [found["checked"]] * len(found["fits"])}
        yield cost(f"fit {name}, {size}", "reading it and computing its checksums", checks)
    fitting = {"ours": [peak], "limit": [MAX_MEMORY + kept]}
    limit = f"1 GB and the {kept:.0f} MB it keeps"
    yield cost(f"memory of fitting {name}", limit, fitting, target=1, unit="MB", memory=peak)
    scored = {"ours": [found["score"]], "floor": [found["score_floor"]]}
    yield cost(f"score {name}, {size}", "the slower of reading and the head's product", scored)
    scoring = {"ours": [found["score_peak"]], "limit": [MAX_MEMORY]}
    yield cost(f"memory of scoring {name}", "1 GB", scoring, target=1, unit="MB", memory=found["score_peak"])
