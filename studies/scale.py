"""Write ``docs/scale.md``: measure each step on one core, and plan a billion images."""

import logging
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.data.transforms import IMAGENET
from oodles.deploy.results.rows import Row
from oodles.deploy.results.writing import Job, open_results
from oodles.detectors import parse
from oodles.distributed import ray as distributed
from oodles.distributed.ray_workers import Extractor, Part
from studies.data import example
from studies.pages import write_page
from studies.sources import resnet50, write_jpegs
from studies.timing import fastest, seconds

BILLION, DAY, HOUR = 1e9, 86_400.0, 3_600.0
IMAGES, NETWORK_IMAGES, SCORED, TASKS = 192, 32, 2048, 400
WIDTH, CLASSES = 2048, 1000
DETECTORS = ("dice(0.9)", "knn", "mahalanobis", "default")
NODE_CORES, LINK, GPU = 64, 1.25e9, 2000  # examples: cores of a node, bytes/s of its 10 Gbit/s link, images/s of a GPU


def main() -> None:
    """Measure, print and write the page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = _images(folder / "images") | _detectors() | _verdicts(folder) | _cluster()
    write_page("scale", **_plan(found))


def _images(folder: Path) -> dict[str, Any]:
    """Seconds of a core and bytes per image: reading, the network, features on disk."""
    write_jpegs(folder, IMAGES)
    files = sorted(folder.iterdir())
    loader = ImageLoader(open_images(folder), IMAGENET, labels=False, workers=1)
    decode = _core_seconds(lambda: sum(len(batch) for batch in loader.pixels())) / IMAGES
    model = resnet50().eval()
    noise = torch.randn(NETWORK_IMAGES, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        network = _core_seconds(lambda: model(noise)) / NETWORK_IMAGES
    table = Extractor(lambda: model, IMAGENET, None, (), NETWORK_IMAGES, True)(
        pa.table({"path": list(map(str, files[:64]))})
    )
    pq.write_table(table.drop_columns(["path"]), folder / "features.parquet")
    return {
        "image_bytes": sum(path.stat().st_size for path in files) / IMAGES,
        "decode": decode,
        "network": network,
        "feature_bytes": (folder / "features.parquet").stat().st_size / table.num_rows,
        "worker_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _detectors() -> dict[str, Any]:
    """Seconds of a core per row for scoring, and the bytes of the statistics that a worker sends after some rows."""
    dumps: Any = distributed.import_ray().cloudpickle.dumps
    rows = distributed.FIT_ROWS
    features = example(rows, WIDTH, CLASSES)
    some = features[:SCORED]
    lines, score = [], {}
    for spec in DETECTORS:
        detector = parse(spec)
        fit = seconds(partial(detector.partial_fit, features), time.process_time) / rows
        sent = len(dumps(Part(detector, rows, 0, "")))
        detector.finish()
        score[spec] = _core_seconds(partial(detector.score, some)) / SCORED
        times = f"{1e6 * fit:.0f} µs | {1e6 * score[spec]:.0f} µs"
        lines.append(f"| `{spec}` | {times} | {sent / 1e6:.0f} MB | {sent / rows / 1e3:.1f} KB |")
    return {"detectors": "\n".join(lines), "score": score["default"], "observe": fit}


def _verdicts(folder: Path) -> dict[str, Any]:
    """Bytes of a result, with names as they are in a bucket."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(100_000, generator=generator).tolist()
    chances = torch.rand(len(scores), generator=generator).tolist()
    names = torch.randint(2**32, (len(scores),), generator=generator).tolist()
    labels = torch.randint(CLASSES, (len(scores),), generator=generator).tolist()
    rows = [
        Row(f"/data/photos/{row // 1000:04}/{name:08x}.jpg", label, f"class {label}", chance, score, None, score > -1.6)
        for row, (name, label, chance, score) in enumerate(zip(names, labels, chances, scores, strict=True))
    ]
    with open_results(folder / "verdicts.parquet", Job("", 0.0, 0.95, "", "", None, len(rows))) as results:
        list(results.remaining([], lambda _: None))
        results.append(rows)
        results.finish()
    return {"verdict_bytes": (folder / "verdicts.parquet").stat().st_size / len(rows)}


def _cluster() -> dict[str, Any]:
    """What Ray itself costs: tasks and bytes per second, and how long it takes until a worker has begun."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = distributed.import_ray()
    began = time.perf_counter()
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    start = time.perf_counter() - began
    try:
        many = ray.data.range(TASKS, override_num_blocks=TASKS)
        tasks = TASKS / fastest(lambda: many.map_batches(_same).materialize())
        payload = pa.table({"bytes": [os.urandom(1 << 20)] * 256})
        large = ray.data.from_arrow([payload] * 4).materialize()
        moved = 4 * payload.nbytes / fastest(lambda: large.map_batches(_count).materialize())
    finally:
        ray.shutdown()
    return {"ray_start": start, "tasks": tasks, "moved": moved, "block_bytes": context.target_max_block_size}


def _same(batch: Any) -> Any:
    return batch


def _count(batch: Any) -> Any:
    return {"bytes": [sum(map(len, batch["bytes"]))]}


def _plan(found: dict[str, Any]) -> dict[str, str]:
    """The measurements as text, and what they mean for a billion images."""
    core = found["decode"] + found["network"] + found["score"]
    node = NODE_CORES / core
    block = found["block_bytes"] / found["image_bytes"]
    in_flight = found["tasks"] * block
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores shared with other work",
        "fit_rows": f"{distributed.FIT_ROWS:,}",
        "detectors": found["detectors"],
        "observers": f"{found['network'] / found['observe']:.0f}",
        "decode": f"{1e3 * found['decode']:.1f} ms",
        "network": f"{1e3 * found['network']:.0f} ms",
        "score": f"{1e3 * found['score']:.1f} ms",
        "image_bytes": f"{found['image_bytes'] / 1e3:.0f} KB",
        "feature_bytes": f"{found['feature_bytes'] / 1e3:.1f} KB",
        "verdict_bytes": f"{found['verdict_bytes']:.0f} bytes",
        "worker_bytes": f"{found['worker_bytes'] / 1e9:.1f} GB",
        "ray_start": f"{found['ray_start']:.0f} s",
        "tasks": f"{found['tasks']:.0f}",
        "moved": f"{found['moved'] / 1e6:,.0f} MB/s",
        "per_core": f"{1 / core:.1f}",
        "core_days": f"{BILLION * core / DAY:,.0f}",
        "decode_days": f"{BILLION * found['decode'] / DAY:,.0f}",
        "network_days": f"{BILLION * found['network'] / DAY:,.0f}",
        "score_days": f"{BILLION * found['score'] / DAY:,.0f}",
        "network_share": f"{100 * found['network'] / core:.0f} %",
        "image_total": f"{BILLION * found['image_bytes'] / 1e12:.0f} TB",
        "feature_total": f"{BILLION * found['feature_bytes'] / 1e12:.1f} TB",
        "verdict_total": f"{BILLION * found['verdict_bytes'] / 1e9:.0f} GB",
        "block": f"{block:,.0f}",
        "block_bytes": f"{found['block_bytes'] / 2**20:.0f} MiB",
        "task_total": f"{BILLION / block:,.0f}",
        "driver_hours": f"{BILLION / in_flight / HOUR:.1f} hours",
        "driver_images": f"{in_flight:,.0f}",
        "node_cores": str(NODE_CORES),
        "node_images": f"{node:,.0f}",
        "node_days": f"{BILLION / node / DAY:,.0f}",
        "node_link": f"{100 * node * found['image_bytes'] / LINK:.1f} %",
        "hundred_hours": f"{BILLION / node / HOUR / 100:.1f}",
        "driver_nodes": f"{in_flight / node:,.0f}",
        "link": f"{8 * LINK / 1e9:.0f} Gbit/s",
        "gpu": f"{GPU:,}",
        "gpu_cores": f"{GPU * found['decode']:.0f}",
        "gpu_link": f"{GPU * found['image_bytes'] / 1e6:.0f} MB/s",
        "gpu_per_link": f"{LINK / (GPU * found['image_bytes']):.1f}",
        "gpu_per_driver": f"{in_flight / GPU:.0f}",
        "gpu_days": f"{BILLION / GPU / DAY:.1f}",
    }


def _core_seconds(run: Callable[[], object]) -> float:
    """Return the least time of a core over some repeats, whatever else the machine does meanwhile."""
    run()
    return fastest(run, clock=time.process_time)
