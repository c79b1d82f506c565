"""Training runs in tests: a short recipe, the environment of worker processes, and what a run left in its folder."""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import oodles
from oodles.records.files import LOCK, Record
from oodles.training import Recipe

WORKER = Path(__file__).with_name("training_worker.py")
# as many threads as in this process, so that sums are rounded alike; the worker imports ``support`` and this oodles
PATHS = WORKER.parents[1], Path(oodles.__file__).parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
SHORT = Recipe(epochs=2, batch_size=16, learning_rate=0.05)
QUIET = {"progress": False}


def weights_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "weights.safetensors")


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def untimed(metrics: list[Record]) -> list[Record]:
    """The metrics without the timings, which differ from run to run."""
    timings = ("seconds", "images_per_second")
    return [{key: value for key, value in line.items() if key not in timings} for line in metrics]


def metrics_of(folder: Path) -> list[Record]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("state-*.safetensors"))


def empty(folder: Path) -> bool:
    return not folder.exists() or not files_of(folder)


def files_of(folder: Path) -> set[str]:
    """The names of the files in a folder, without that of its lock."""
    return {path.name for path in folder.iterdir()} - {LOCK}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def recorded_batches(model: nn.Module) -> list[Tensor]:
    """A list that receives every batch the model is trained on."""
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()) if module.training else None)
    return seen
