"""Extract, fit and score over a Ray Dataset, in several processes of one machine or on a cluster.

Rows are images or features. A row of an image has a ``path``, and perhaps ``bytes``, the content of the file, as
``ray.data.read_binary_files(..., include_paths=True)`` or Parquet files give them; without ``bytes`` the workers open
the ``path``. Rows of features are those that :func:`extract` gives: the network is not run again for them. Ray does not
keep the order of rows, so every result has the ``path`` of its input. An image that cannot be read becomes a row with
an ``error``, which is null in all others.

Workers are Ray actors, and each loads its model or guard once. If one dies, Ray starts another and repeats the batches
that it had not finished; what a worker returns depends on nothing but the batch, so that nothing is lost or counted
twice. Each call has workers of its own: to use the features of :func:`extract` in another call, write them first.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from oodles.data.transforms import Transform
from oodles.deploy.opening import OpenGuard
from oodles.detectors import Detector
from oodles.detectors.network_detector import layers_of
from oodles.detectors.parsing import as_detector
from oodles.distributed.ray_workers import Extractor, Scorer, are_features, check_path, describe, merge, observe
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.extras import needed_by
from oodles.network.forward import HeadName

if TYPE_CHECKING:
    from ray.data import Dataset

ROWS = 256  # images that a worker is given at a time
MAX_BLOCKS = 10_000
FIT_ROWS = 16_384  # features that a task observes at a time: with fewer, statistics would be larger than the features


@dataclass(frozen=True)
class Workers:
    """How many workers there are, the CPUs and GPUs of each, and how many images its network is given at a time.

    By default there are as many as the cluster has room for beside one CPU, which is left for the tasks that read and
    write: without it, they would wait for the workers and the workers for them.
    """

    count: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    batch_size: int = 32

    def __post_init__(self) -> None:
        if (self.count is not None and self.count < 1) or self.cpus <= 0 or self.gpus < 0 or self.batch_size < 1:
            raise ArgumentError(f"{self} is impossible; give at least 1 worker, more than 0 CPUs, batch_size 1 or more")

    def options(self) -> dict[str, Any]:
        """Arguments of ``map_batches``; an error if the cluster has no room for the workers and a task beside them."""
        ray = import_ray()
        if not ray.is_initialized():
            ray.init()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        total, room = sum(node.get("CPU", 0.0) for node in nodes), sum(map(self._fitting, nodes))
        most = min(room, int((total - 1) / self.cpus))
        if most < max(1, self.count or 1):
            asked = "a worker" if self.count is None else f"{self.count} workers"
            each = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            raise ArgumentError(
                f"the cluster has {total:g} CPUs, too few for {asked} of {each} and one CPU for reading; there is room "
                f"for {max(0, most)}: give fewer workers or fewer CPUs to each, or more CPUs to Ray"
            )
        pool = ray.data.ActorPoolStrategy(size=self.count or most)
        return {"compute": pool, "num_cpus": self.cpus, "num_gpus": self.gpus, "batch_format": "pyarrow"}

    def _fitting(self, node: dict[str, float]) -> int:
        """How many workers a node has room for."""
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        return min(int(node.get(name, 0.0) / need) for name, need in needs.items() if need)


DEFAULT = Workers()


def from_paths(paths: Iterable[str | Path]) -> "Dataset":
    """A Dataset of image files that every worker can open under the same path."""
    names = list(map(str, paths))
    for name in names:
        if not name.isprintable() and name.encode(errors="replace").decode() != name:
            raise DataError(f"{name!r} is not valid text, which Ray needs for a path; rename the file")
    if not names:
        raise DataError("there are no images; give at least one path")
    # smaller blocks would be joined, and each is a task that Ray's driver has to hand out
    blocks = min(max(1, len(names) // ROWS), MAX_BLOCKS)
    rows: Dataset = import_ray().data.from_items([{"path": name} for name in names], override_num_blocks=blocks)
    return rows


def extract(
    images: "Dataset",
    load: Callable[[], nn.Module],
    transform: Transform,
    *,
    head: HeadName = None,
    layers: Sequence[str] = (),
    half: bool = False,
    workers: Workers = DEFAULT,
) -> "Dataset":
    """Features of images, computed as the Dataset is consumed, for example by ``.write_parquet(folder)``.

    ``load`` returns the model and is called once in each worker; ``transform`` is how images are preprocessed.
    ``head`` and ``layers`` are those of :func:`oodles.extract`, and ``half`` stores float16. The columns are ``path``,
    ``embedding``, ``logits``, ``layer.<name>`` and ``error``, and ``labels`` if the images have that column.
    """
    check_path(images.columns(fetch_if_missing=False))
    settings = (load, transform, head, tuple(layers), workers.batch_size)
    return images.map_batches(Extractor, fn_constructor_args=(*settings, half), batch_size=ROWS, **workers.options())


def fit(
    detector: Detector | str,
    rows: "Dataset",
    load: Callable[[], nn.Module],
    transform: Transform,
    *,
    head: HeadName = None,
    workers: Workers = DEFAULT,
) -> Detector:
    """A fitted copy of ``detector``, from ID images or features.

    The arguments are those of :func:`extract`, whose features go to tasks that observe many rows at a time, on the CPUs
    that the workers leave free; :meth:`oodles.Detector.merge` adds up their statistics in this process. Rows with an
    error are left out, and a warning counts them.
    """
    check_path(rows.columns(fetch_if_missing=False))
    begun = as_detector(detector)
    if begun.learns_from and begun.fitted:
        raise ArgumentError(f"{begun} is fitted already; give a new one with the same arguments")
    ray = import_ray()
    if not are_features(rows.columns(fetch_if_missing=False)):
        rows = extract(rows, load, transform, head=head, layers=layers_of([begun]), workers=workers)
    once = ray.remote(num_cpus=workers.cpus, num_gpus=workers.gpus)(describe)
    about = {"detector": begun, "classifier": ray.get(once.remote(load, transform, head))}
    task: Any = observe  # Ray's annotation has no further arguments
    parts = rows.map_batches(task, fn_kwargs=about, batch_size=FIT_ROWS, batch_format="pyarrow")
    whole = merge(row["part"] for row in parts.iter_rows())
    if whole.detector is None:
        raise DataError(f"none of {whole.rows} rows has features to fit {begun} on ({whole.problem or 'no rows'})")
    if whole.bad:
        warnings.warn(
            f"{whole.bad} of {whole.rows} rows are left out of the fit, one of them is {whole.problem}",
            FitWarning,
            stacklevel=2,
        )
    return whole.detector.finish()


def score(rows: "Dataset", load: Callable[[], OpenGuard], *, workers: Workers = DEFAULT) -> "Dataset":
    """Verdicts on images or features, computed as the Dataset is consumed, for example by ``.write_parquet(folder)``.

    ``load`` returns what :func:`oodles.deploy.opening.open_guard` gives, a saved guard with its model or an exported
    one, and is called once in each worker. The columns are those of ``oodles score``: ``path``, ``label``,
    ``class_name``, ``probability``, ``score``, ``p_value``, ``is_id`` and ``error``. With an error, because an image
    cannot be read or the network gives NaN for it, ``is_id`` is false and the others are null.
    """
    check_path(rows.columns(fetch_if_missing=False))
    settings = (load, workers.batch_size)
    return rows.map_batches(Scorer, fn_constructor_args=settings, batch_size=ROWS, **workers.options())


def import_ray() -> Any:
    """Ray, with Ray Data."""
    with needed_by("oodles.distributed.ray"):
        import ray.data
    return ray
