"""Two small networks that read no images, for the study behind the default detector; each is trained in a minute.

``table`` reads rows of 64 numbers. ``files`` reads the first bytes of files in some installed packages, so its numbers
depend on their versions.
"""

import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.features import Features, Head

Sets = dict[str, Features]
"""``train``, ``test`` and the OOD sets."""
BYTES, FILES, KNOWN_DIGITS = 512, 400, 7
PACKAGES = ("matplotlib", "mypyc", "numpy", "onnx", "pyarrow", "scipy", "sklearn", "timm", "torch", "torchgen")
KINDS = {
    "python": (".py",),
    "stub": (".pyi",),
    "header": (".h",),
    "C": (".c", ".cc", ".cpp"),
    "cython": (".pyx", ".pxd", ".pxi"),
    "prose": (".txt", ".md", ".rst"),
}
OTHER_KINDS = {
    "compiled Python": (".pyc",),
    "shared libraries": (".so",),
    "pictures and fonts": (".png", ".ttf", ".gif", ".ico", ".pdf"),
    "other text": (".json", ".csv", ".js", ".svg", ".css", ".html", ".afm", ".f90"),
}


def table() -> Sets:
    """An MLP with ReLU on scikit-learn's digits as a table of 64 columns, trained on the digits 0 to 6."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    rows, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    rows, labels = rows.float() / 16, labels.long()
    order = torch.randperm(len(rows))
    known = order[labels[order] < KNOWN_DIGITS]
    train, test = known[: len(known) * 2 // 3], known[len(known) * 2 // 3 :]
    body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    inputs = {
        "train": rows[train],
        "test": rows[test],
        "digits 7 to 9": rows[labels >= KNOWN_DIGITS],
        "rows times 4": 4 * rows[test],
        "uniform noise": torch.rand(500, 64),
        "permuted columns": rows[test][:, torch.randperm(64)],
    }
    return trained_sets(body, nn.Linear(64, KNOWN_DIGITS), inputs, {"train": labels[train], "test": labels[test]}, 60)


class ByteNetwork(nn.Module):
    """Bytes to vectors, two convolutions, the mean over all positions, LayerNorm."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.vectors = nn.Embedding(257, 16)  # the last one stands for the end of a shorter file
        self.first = nn.Conv1d(16, width, 7, stride=2)
        self.second = nn.Conv1d(width, width, 5, stride=2)
        self.norm = nn.LayerNorm(width)

    def forward(self, files: Tensor) -> Tensor:
        """Embeddings."""
        maps = self.second(F.relu(self.first(self.vectors(files).transpose(1, 2))))
        return self.norm(F.relu(maps).mean(dim=2))


def files() -> Sets:
    """A network that tells six kinds of text files apart by their first 512 bytes; other files are OOD."""
    torch.manual_seed(0)
    installed = Path(sysconfig.get_paths()["purelib"])
    found = sorted(path for name in PACKAGES for path in (installed / name).rglob("*.*") if path.is_file())
    known = [beginnings(found, suffixes) for suffixes in KINDS.values()]
    labels = torch.cat([torch.full((len(part),), label) for label, part in enumerate(known)])
    rows = torch.cat(known)
    order = torch.randperm(len(rows))
    train, test = order[: len(rows) * 2 // 3], order[len(rows) * 2 // 3 :]
    inputs = {"train": rows[train], "test": rows[test]}
    inputs |= {name: beginnings(found, suffixes) for name, suffixes in OTHER_KINDS.items()}
    inputs["random bytes"] = torch.randint(0, 256, (FILES, BYTES))
    return trained_sets(
        ByteNetwork(), nn.Linear(64, len(KINDS)), inputs, {"train": labels[train], "test": labels[test]}, 20
    )


def beginnings(paths: list[Path], suffixes: tuple[str, ...]) -> Tensor:
    """The first bytes of up to 400 files with these suffixes that begin differently."""
    some = [path for path in paths if path.suffix in suffixes]
    found: dict[bytes, None] = {}
    for place in np.random.default_rng(0).permutation(len(some)):
        with some[place].open("rb") as file:
            found[file.read(BYTES)] = None
        if len(found) == FILES:
            break
    rows = torch.full((len(found), BYTES), 256)
    for row, text in zip(rows, found, strict=True):
        row[: len(text)] = torch.tensor(list(text))
    return rows


def trained_sets(
    body: nn.Module, last: nn.Linear, inputs: dict[str, Tensor], labels: dict[str, Tensor], epochs: int
) -> Sets:
    """Train the network on ``train`` and return the features of all inputs."""
    search = torch.optim.AdamW([*body.parameters(), *last.parameters()], lr=3e-3, weight_decay=0.01)
    for _ in range(epochs):
        for some in torch.split(torch.randperm(len(inputs["train"])), 32):
            loss = F.cross_entropy(last(body(inputs["train"][some])), labels["train"][some])
            search.zero_grad()
            loss.backward()
            search.step()
    head = Head(last.weight.detach(), last.bias.detach())
    with torch.no_grad():
        return {name: Features(body(part), labels=labels.get(name), head=head) for name, part in inputs.items()}


OTHERS: dict[str, Callable[[], Sets]] = {"table": table, "files": files}
