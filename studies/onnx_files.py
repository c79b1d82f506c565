"""Write the table of ``docs/onnx.md``: find the heads of ONNX files from many architectures, and fail if one is wrong.

Every architecture is built with random weights and exported both ways that torch has; no data is needed.
"""

import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from support.architectures import ARCHITECTURES
from support.head_survey import Architecture, build, inputs_of
from torch import Tensor, nn

import oodles as ood
from oodles.columns import Columns
from studies.pages import DOCS, markdown_table

START, END = "<!-- written by `make study NAME=onnx_files` -->\n", "<!-- end -->"
# fmt: off
NAMES = {
    "resnet18", "shufflenet_v2_x0_5", "densenet", "squeezenet1_0", "mobilenet_v2", "efficientnet_b0", "convnext",
    "vit", "swin", "test_vit", "deit_tiny_distilled_patch16_224", "cait_xxs24_224", "mixer_s32_224",
    "mobilevit_xxs", "BERT", "DistilBERT", "DeBERTa-v2", "GPT-2", "ViT", "DINOv2", "CLIP with a classifier", "T5",
}
# fmt: on
SAME = 1e-4  # largest relative difference of embeddings and of logits


class Called(nn.Module):
    """A network with its inputs by position, which both of torch's exporters take."""

    def __init__(self, architecture: Architecture, network: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.network, self.names, self.answer = network, names, architecture.answer

    def forward(self, *values: Tensor) -> Tensor:
        """The logits."""
        return self.answer(
            self.network(**dict(zip(self.names, values, strict=True))) if self.names else self.network(*values)
        )


def main() -> None:
    """Export, search and write; exit with an error, and leave the page as it is, if anything is wrong."""
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            if architecture.name in NAMES and architecture.library in ("torchvision", "timm", "transformers"):
                rows += survey(architecture, Path(folder))
        rows += quantised(Path(folder)) + scikit_learn(Path(folder))
    page = DOCS / "onnx.md"
    before, _, rest = page.read_text().partition(START)
    columns = ("model", "file", "head", "embedding", "difference from the module")
    page.write_text(f"{before}{START}\n{markdown_table(columns, rows)}\n\n{END}{rest.partition(END)[2]}")
    print(overhead())
    wrong = [row for row in rows if row[2].startswith("wrong")]
    print(f"written: {page}")
    if wrong:
        sys.exit("\n".join(["wrong:", *map(" | ".join, wrong)]))


def overhead(repeats: int = 7, calls: int = 150) -> str:
    """How much longer a guarded Magika takes than the file alone, for one input at a time on one thread."""
    import magika

    path = Path(magika.__file__).parent / "models" / "standard_v3_3" / "model.onnx"
    rows = torch.randint(0, 257, (600, 2048), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    bare = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ood.Guard.fit(path, rows.split(64)).export(Path(folder) / "guard.zip")
        guarded = ood.Guard.open(Path(folder) / "guard.zip", threads=1)
    runs: tuple[Callable[[Any], Any], ...] = lambda x: bare.run(None, {"bytes": x}), guarded
    ratios = []
    for _ in range(repeats):
        seconds: tuple[list[float], list[float]] = [], []
        for row in rows[:calls].numpy():
            for run, times in zip(runs, seconds, strict=True):
                start = time.perf_counter()
                run(row[None])
                times.append(time.perf_counter() - start)
        ratios.append(statistics.median(seconds[1]) / statistics.median(seconds[0]))
    return f"guarded / bare: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def survey(architecture: Architecture, folder: Path) -> list[list[str]]:
    """A row for each of torch's two exporters."""
    network = build(architecture).eval()
    batches = [each if isinstance(each, Mapping | tuple) else (each,) for each in inputs_of(architecture)]
    names = [*batches[0]] if isinstance(batches[0], Mapping) else []
    given = [tuple(each.values()) if isinstance(each, Mapping) else each for each in batches]
    try:
        known: Columns | None = columns_of(ood.extract(network, inputs_of(architecture), labels=False, progress=False))
    except ood.HeadError:
        known = None
    rows = []
    for way in ("TorchScript", "dynamo"):
        path = folder / f"{way}.onnx"
        try:
            export(Called(architecture, network, names).eval(), given[0], path, way == "dynamo")
            result = found(path, given, known)
        except Exception as error:
            kind = type(error).__name__
            result = ["torch cannot export it" if not isinstance(error, ood.OodlesError) else f"wrong: {kind}", "", ""]
            print(kind, str(error).partition("\n")[0][:300])
        rows.append([f"{architecture.library} {architecture.name}", way, *result])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def export(network: nn.Module, inputs: tuple[Tensor, ...], path: Path, dynamo: bool) -> None:
    """Write the network with a free number of rows."""
    names = [f"input_{place}" for place in range(len(inputs))]
    options: dict[str, Any] = {"dynamo": True, "external_data": False, "verbose": False}
    axes = [{0: "n"} if each.is_floating_point() else {0: "n", 1: "tokens"} for each in inputs]
    options["dynamic_shapes"] = (tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in axes),)
    if not dynamo:
        options = {
            "dynamo": False,
            "dynamic_axes": {"output": {0: "n"}, **dict(zip(names, axes, strict=True))},
            "opset_version": 17,
        }
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        torch.onnx.export(network, inputs, path, input_names=names, output_names=["output"], **options)
        logging.disable(logging.NOTSET)


def columns_of(features: ood.Features) -> Columns:
    """Embeddings and logits."""
    return {"embedding": features.embedding, "logits": features.logits}


def found(path: Path, batches: list[tuple[Tensor, ...]], known: Columns | None) -> list[str]:
    """What ``extract`` finds in a file, and how far its embeddings and logits are from those of the module."""
    model = ood.OnnxModel(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            features = ood.extract(model, batches, labels=False, progress=False)
        except ood.HeadError as error:
            ood.MSP().fit(ood.extract(model, batches, labels=False, head=False, progress=False))  # its remedy
            reason = str(error).partition(": ")[0].removeprefix(f"{path} ")
            return [f"refused: {reason}; `head=False` works", "", ""]
    embedding, located = features.embedding, model.found
    head = f"{located.kind} ({located.name.partition(' ')[0]})"
    if known is None:
        return [head, str(embedding.shape[1]), "no module"]
    if embedding.shape != known["embedding"].shape:
        return ["wrong: another embedding", str(embedding.shape[1]), f"the module has {known['embedding'].shape[1]}"]
    gaps = [
        float((a - b).abs().max() / b.abs().max())
        for a, b in zip(columns_of(features).values(), known.values(), strict=True)
    ]
    return [head if max(gaps) <= SAME else f"wrong: {head}", str(embedding.shape[1]), f"{max(gaps):.0e}"]


class _Rows(CalibrationDataReader):  # type: ignore[misc]  # it is untyped
    def __init__(self, images: Tensor) -> None:
        self._rows = iter([{"input_0": images.numpy()}])

    def get_next(self) -> Any:
        """The next batch, or None."""
        return next(self._rows, None)


def quantised(folder: Path) -> list[list[str]]:
    """Rows for a network in int8, with scales that were measured before and with scales of each batch."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )
    batches: list[tuple[Tensor, ...]] = [(torch.randn(rows, 3, 16, 16),) for rows in (8, 5)]
    export(nn.Sequential(*layers).eval(), batches[0], folder / "float.onnx", dynamo=False)
    ways: dict[str, Callable[[Path], None]] = {
        "static int8": lambda path: quantize_static(folder / "float.onnx", path, _Rows(batches[0][0])),
        "dynamic int8": lambda path: quantize_dynamic(folder / "float.onnx", path),
    }
    rows = []
    for name, write in ways.items():
        logging.disable(logging.CRITICAL)
        write(folder / "int8.onnx")
        logging.disable(logging.NOTSET)
        rows.append(["a small CNN", name, *found(folder / "int8.onnx", batches, None)])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def scikit_learn(folder: Path) -> list[list[str]]:
    """Rows for classifiers of scikit-learn, converted by skl2onnx; their embedding is what the last layer is given."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data, labels = load_digits(return_X_y=True)
    rows = []
    for name, model, classes in (
        ("LogisticRegression behind a StandardScaler", LogisticRegression(max_iter=100), 10),
        ("LogisticRegression, two classes", LogisticRegression(max_iter=100), 2),
        ("MLPClassifier", MLPClassifier((32,), max_iter=30), 10),
        ("RandomForestClassifier", RandomForestClassifier(10), 10),
    ):
        wanted = labels < classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = make_pipeline(StandardScaler(), model).fit(data[wanted], labels[wanted])
        (folder / "sklearn.onnx").write_bytes(to_onnx(fitted, data[:1].astype(np.float32)).SerializeToString())
        batch = torch.from_numpy(data[wanted][:50].astype(np.float32))
        rows.append([f"scikit-learn {name}", "skl2onnx", *found(folder / "sklearn.onnx", [(batch,)], None)])
        print(*rows[-1], sep=" | ", flush=True)
    return rows
