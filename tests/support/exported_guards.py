"""Two small exported guards, guards packed from their altered parts, and what is said of these."""

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oodles
from oodles.data.transforms import Transform
from oodles.deploy.exported import ExportedGuard
from oodles.errors import FileError
from oodles.guard import Guard

RECORD, GRAPH, TENSORS = NAMES = ("guard.json", "guard.onnx", "detector.safetensors")
KINDS = ("vectors", "images")
Parts = dict[str, bytes]


class Net(nn.Module):
    """A linear head on a hidden layer."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(values, 6), nn.ReLU())
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def export(kind: str, path: Path) -> Path:
    """Write a guard of vectors, or one of images with preprocessing; both are always the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net(5 if kind == "vectors" else 48).eval()
    if kind == "vectors":
        rows = torch.randn(120, 5, generator=generator)
        detector, preprocessing = "dice(0.5)", None
    else:
        rows = (torch.rand(120, 3, 4, 4, generator=generator) - 0.5) / 0.25
        detector = "rank_ensemble(['dice(0.5)', 'energy'], holdout=0.4)"
        preprocessing = Transform(4, 4, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    classes = ["a", "b", "c"]
    Guard.fit(model, [rows], detector=detector, labels=False, classes=classes, preprocessing=preprocessing).export(path)
    return path


def inputs(kind: str) -> Any:
    """Some inputs that the guard takes, and was not exported with."""
    generator = np.random.default_rng(1)
    if kind == "vectors":
        return generator.normal(size=(7, 5)).astype(np.float32)
    return generator.integers(0, 256, (7, 6, 9, 3), dtype=np.uint8)


def parts_of(path: Path) -> Parts:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in NAMES}


def write(parts: Parts, path: Path) -> Path:
    """Write the members as ``export`` packs them."""
    path.write_bytes(zipped(parts))
    return path


def zipped(parts: Parts, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            archive.writestr(info, content)
    return buffer.getvalue()


def record_of(parts: Parts) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(parts[RECORD])
    del record["seal"]
    return record


def sealed(record: Any) -> bytes:
    """A record with the checksum that belongs to it."""
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return json.dumps({**record, "seal": hashlib.sha256(canonical.encode()).hexdigest()}).encode()


def forged(parts: Parts, record: dict[str, Any] | None = None, **members: bytes) -> Parts:
    """The parts with another record, graph or tensors, and every checksum computed again."""
    changed = record_of(parts) if record is None else record
    contents = {GRAPH: members.get("graph", parts[GRAPH]), TENSORS: members.get("tensors", parts[TENSORS])}
    for name, content in contents.items():
        entry = changed.get("members", {}).get(name) if members else None
        if entry is not None:
            entry |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    return {RECORD: sealed(changed), **contents}


def refusal(path: Path) -> str:
    """The line with which a guard is refused; opening it changes nothing in its folder."""
    before = listing(path.parent)
    with pytest.raises(FileError) as refused:
        ExportedGuard.open(path)
    assert listing(path.parent) == before
    line = str(refused.value)
    assert len(line.splitlines()) == 1
    assert str(path) in line
    return line


def listing(folder: Path) -> list[tuple[Path, int, int]]:
    return sorted((path, (found := path.lstat()).st_size, found.st_mtime_ns) for path in folder.rglob("*"))


def in_limited_process(path: Path, megabytes: int) -> tuple[str, int]:
    """What a process that may allocate little says of a guard, and the megabytes that it needed beyond a start."""
    program = (
        "import resource, sys\n"
        "import onnxruntime\n"
        "from oodles.deploy.exported import ExportedGuard\n"
        "from oodles.errors import FileError\n"
        "start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({megabytes} << 20, {megabytes} << 20))\n"
        "try:\n"
        "    print(ExportedGuard.open(sys.argv[1], threads=1))\n"
        "except FileError as error:\n"
        "    print('refused:', error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(oodles.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    line, needed = done.stdout.splitlines()
    return line, int(needed)
