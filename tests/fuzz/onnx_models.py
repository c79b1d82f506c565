"""ONNX files of strangers: altered bytes (*damaged*), and graphs with other operators, edges and sizes (*graphs*).

A file is refused in one line, or its head gives the file's own output for rows that the search has not seen.
"""

import random
from functools import cache
from pathlib import Path

import onnx
import torch
from support import onnx_files as made

import oodles as ood

from . import ACCEPTED
from .alterations import damaged, in_one_line

ROUNDS, SHORT, CHUNK = 4000, 60, 200

TEXTS = (*made.GRAPHS.values(), *(text for text, _ in made.REFUSED.values()))
OPERATORS = ("Relu", "Tanh", "Softmax", "Dropout", "Loop", "If", "Identity", "Transpose", "Shape", "ZipMap", "Foo", "")
SIZES = (0, 1, -1, 5, 1 << 20, 1 << 40, 1 << 62)


@cache
def _content(text: str) -> bytes:
    return made.model(text).SerializeToString()


def _judge(content: bytes, place: Path) -> str:
    path = place / "m.onnx"
    path.write_bytes(content)
    model = in_one_line(lambda: ood.OnnxModel(path, threads=1))
    features = in_one_line(lambda: ood.extract(model, made.batches((9, 4)), progress=False))
    rows = made.batches((50,))[0] * 3
    output, *inputs = model.run([rows], {}, [point.module for point in model.found.points])
    output = output.flatten(1)
    predicted = model.found.predict(model.found.embedding(inputs, output))
    finite = torch.isfinite(output).all(dim=1) & torch.isfinite(predicted).all(dim=1)
    largest = max(float(output[finite].abs().max()) if finite.any() else 0.0, 1e-2)
    if finite.any() and float((predicted - output)[finite].abs().max()) > 1e-3 * largest:
        raise RuntimeError("another head was accepted")
    assert features.head is not None
    return ACCEPTED


def damaged_file(draw: random.Random, place: Path) -> str:
    return _judge(damaged(draw, _content(draw.choice(TEXTS))), place)


def odd_graph(draw: random.Random, place: Path) -> str:
    model = onnx.load_from_string(_content(draw.choice(TEXTS)))
    graph = model.graph
    for _ in range(draw.choice((1, 1, 2, 4))):
        node = draw.choice(graph.node)
        names = [name for each in graph.node for name in (*each.input, *each.output)]
        match draw.randrange(7):
            case 0:
                node.op_type = draw.choice(OPERATORS)
            case 1 if node.input:
                node.input[draw.randrange(len(node.input))] = draw.choice(names)
            case 2:
                node.output[0] = draw.choice(names)
            case 3 if graph.initializer:
                tensor = draw.choice(graph.initializer)
                tensor.dims[:] = [draw.choice(SIZES) for _ in tensor.dims]
            case 4:
                for size in graph.input[0].type.tensor_type.shape.dim:
                    size.dim_value = abs(draw.choice(SIZES))
            case 5:
                graph.output[0].name = draw.choice(names)
            case _:
                model.opset_import[0].version = draw.choice((0, 1, 7, 12, 22, 99, 1 << 40))
    return _judge(model.SerializeToString(), place)


CASES = {"damaged": damaged_file, "graphs": odd_graph}
