"""Exported guards that were altered by accident and on purpose.

By accident (*damaged*, *archives*): bytes change, files are cut, lost or exchanged, archives are packed otherwise. What
is opened must then give the original answers. On purpose (*records*, *tensors*, *graphs*): the content is replaced
and all checksums are computed again. With another record or other tensors, what is opened may decide otherwise, but
its scores must be the original ones. With another graph it may be another guard, but it must be able to score, and
nothing whose score is not finite may be in-distribution. Opening never changes or adds a file.
"""

import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import load, save
from support import exported_guards as made

from oodles.deploy.artefact import is_exported
from oodles.deploy.exported import OUTPUTS, ExportedGuard
from oodles.deploy.verdict import ArrayVerdict

from . import ACCEPTED, NON_FINITE
from .alterations import change_field, damaged, damaged_tensors, in_one_line, strange_text

ROUNDS, SHORT, CHUNK = 10_000, 100, 1000

OF_THE_GRAPH = ("logits", "label", "probability", "score", "p_value")  # all but the decision, which has the threshold
Array = np.ndarray[Any, Any]
ARRAYS: tuple[Callable[[Array], Array], ...] = (
    *(lambda a: a[..., :-1], lambda a: a[:0], lambda a: a[None], lambda a: a.ravel(), lambda a: np.float32(0)[...]),
    *(lambda a: np.concatenate([a, a]), lambda a: a.astype(np.float64), lambda a: a.astype(np.float16)),
    *(lambda a: a.astype(np.int64), lambda a: a.astype(bool), lambda a: a.astype(np.complex64), lambda a: a[::-1]),
    *(lambda a: a * np.nan, lambda a: a + np.inf, lambda a: a * 0, lambda a: -a, lambda a: a * 1e30),
)
SHAPES = ([], [0], [-1], [1 << 40], [1 << 62], [1 << 31, 1 << 31], [3, 3], [1] * 40)
OPERATORS = ("Relu", "Loop", "If", "Scan", "Expand", "Reshape", "Gather", "ConstantOfShape", "Tile", "Range", "Foo", "")
NAMES = ("../x", "/x", "guard.json/", "..\\guard.json", "guard.json\0x", "GUARD.JSON", "x.pkl", "é", "a" * 5000)


# What is attacked -------------------------------------------------------------------------------


@cache
def _original(kind: str) -> made.Parts:
    folder = Path(mkdtemp(prefix="exported-"))
    return made.parts_of(made.export(kind, folder / "guard.zip"))


@cache
def _answers(kind: str) -> ArrayVerdict:
    path = made.write(_original(kind), Path(mkdtemp(prefix="exported-")) / "guard.zip")
    return ExportedGuard.open(path, threads=1)(made.inputs(kind))


def _judge(path: Path, kind: str, same: tuple[str, ...]) -> str:
    """Open what was altered and ask it; ``same`` are the outputs that have to be those of the original."""
    original, before = _answers(kind), _listing(path.parent)
    is_exported(path)
    here = Path.cwd()
    os.chdir(path.parent)  # what is written where the process works would be noticed
    try:
        guard = in_one_line(lambda: ExportedGuard.open(path, threads=1))
        verdicts = [in_one_line(lambda: guard(made.inputs(kind)))]
        if guard.transform is not None:
            verdicts.append(in_one_line(lambda: guard([*made.inputs(kind)])))  # resized by Pillow, not by the graph
        verdict = in_one_line(lambda: guard.judge(guard.arrays(made.inputs(kind)), explain=True))
        verdicts.append(verdict)
        assert [each.is_id for each in verdict.explanations] == verdict.is_id.tolist()
        json.dumps([each.as_record() for each in verdict.explanations], allow_nan=False)
    finally:
        os.chdir(here)
        assert _listing(path.parent) == before, "opening a guard changed files"
    for verdict in verdicts:
        for name in same:
            assert np.array_equal(getattr(verdict, name), getattr(original, name)), f"another {name} was not noticed"
        if bool(verdict.is_id[~np.isfinite(verdict.score)].any()):
            return NON_FINITE
    return ACCEPTED


def _listing(folder: Path) -> list[tuple[str, int, float]]:
    """Every file in a folder and beside it, with its size and the time of its last change."""
    paths = sorted((*folder.rglob("*"), *folder.parent.glob("*")))
    return [(str(path), found.st_size, found.st_mtime) for path in paths if (found := path.lstat())]


# By accident ------------------------------------------------------------------------------------


def damaged_guard(draw: random.Random, place: Path) -> str:
    kind, path = draw.choice(made.KINDS), place / "guard.zip"
    parts, name, choice = _original(kind), draw.choice(made.NAMES), draw.random()
    if choice < 0.1:
        other = next(each for each in made.KINDS if each != kind)
        made.write({**parts, name: _original(other)[name]}, path)
    elif choice < 0.5:
        made.write({**parts, name: damaged(draw, parts[name])}, path)
    else:
        path.write_bytes(damaged(draw, made.zipped(parts)))
    return _judge(path, kind, OUTPUTS)


def odd_archive(draw: random.Random, place: Path) -> str:
    """The right members packed in a wrong way, or with others."""
    kind, path = draw.choice(made.KINDS), place / "guard.zip"
    parts = _original(kind)
    path.write_bytes(draw.choice((_odd_members, _odd_headers, _odd_end))(draw, parts))
    return _judge(path, kind, OUTPUTS)


def _odd_members(draw: random.Random, parts: made.Parts) -> bytes:
    """Members in another order, twice, compressed, renamed, missing, or with others."""
    members = [*parts.items()]
    draw.shuffle(members)
    match draw.randrange(6):
        case 0:
            members.append((draw.choice(NAMES), draw.randbytes(9)))
        case 1:
            members.append(draw.choice(members))
        case 2:
            members.pop()
        case 3:
            members[0] = (draw.choice(NAMES), members[0][1])
        case 4:
            members[0] = (members[0][0], made.zipped(parts))
    method = draw.choice((zipfile.ZIP_STORED,) * 3 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    return made.zipped(_Repeated(members), method)


class _Repeated(dict[str, bytes]):
    """Members of which two may have the same name."""

    def __init__(self, members: list[tuple[str, bytes]]) -> None:
        self._members = members
        super().__init__(members)

    def items(self) -> Any:
        return self._members


def _odd_headers(draw: random.Random, parts: made.Parts) -> bytes:
    """Wrong numbers in the headers of a member or in the list of members: flags, method, sizes, checksums, offsets."""
    content = bytearray(made.zipped(parts))
    signature = draw.choice((b"PK\3\4", b"PK\1\2"))
    starts = [at for at in range(len(content)) if content[at : at + 4] == signature]
    for _ in range(draw.choice((1, 1, 3))):
        at = draw.choice(starts) + draw.randrange(4, 46, 2)
        content[at : at + 2] = struct.pack("<H", draw.choice((0, 1, 8, 9, 14, 99, 0xFFFF, draw.randrange(1 << 16))))
    return bytes(content)


def _odd_end(draw: random.Random, parts: made.Parts) -> bytes:
    """A wrong end of the archive, something before or after it, or one archive after another."""
    content = made.zipped(parts)
    end = bytearray(content[-22:])
    at = draw.randrange(4, 22, 2)
    end[at : at + 2] = struct.pack("<H", draw.choice((0, 1, 2, 4, 0xFFFF, draw.randrange(1 << 16))))
    large = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 3, 3, draw.choice((150, 1 << 40)), 0)
    locator = struct.pack("<IIQI", 0x07064B50, 0, draw.choice((0, len(content) - 22)), 1)
    return draw.choice(
        (
            content[:-22] + bytes(end),
            content + draw.randbytes(draw.choice((1, 22, 70_000))),
            draw.randbytes(draw.choice((1, 1000))) + content,
            content + content,
            content[:-22] + large + locator + content[-22:],
            content[-22:],
        )
    )


# On purpose -------------------------------------------------------------------------------------


def forged_record(draw: random.Random, place: Path) -> str:
    kind = draw.choice(made.KINDS)
    parts = _original(kind)
    record = made.record_of(parts)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        holder = draw.choice((record, record, *(part for part in record.values() if isinstance(part, dict) and part)))
        change_field(draw, holder)
    changed = made.forged(parts, record)
    if draw.random() < 0.1:
        text = strange_text(draw, changed[made.RECORD].decode())
        changed[made.RECORD] = text.encode(errors="surrogatepass")
    return _judge(made.write(changed, place / "guard.zip"), kind, OF_THE_GRAPH)


def forged_tensors(draw: random.Random, place: Path) -> str:
    kind = draw.choice(made.KINDS)
    parts = _original(kind)
    if draw.random() < 0.4:
        content = damaged_tensors(draw, parts[made.TENSORS])
    else:
        arrays = load(parts[made.TENSORS])
        name = draw.choice(sorted(arrays))  # read in no particular order
        if draw.random() < 0.2:
            del arrays[name]
        else:
            arrays[name] = np.ascontiguousarray(draw.choice(ARRAYS)(arrays[name]))
        content = save(arrays)
    path = made.write(made.forged(parts, tensors=content), place / "guard.zip")
    return _judge(path, kind, OF_THE_GRAPH)


def forged_graph(draw: random.Random, place: Path) -> str:
    kind = draw.choice(made.KINDS)
    parts = _original(kind)
    if draw.random() < 0.5:
        content = damaged(draw, parts[made.GRAPH])
    else:
        model = onnx.load_from_string(parts[made.GRAPH])
        for _ in range(draw.choice((1, 1, 1, 3))):
            draw.choice((_change_node, _change_node, _change_tensor, _change_ends))(draw, model)
        content = model.SerializeToString()
    path = made.write(made.forged(parts, graph=content), place / "guard.zip")
    return _judge(path, kind, ())


def _change_node(draw: random.Random, model: onnx.ModelProto) -> None:
    """Another operator, other inputs or attributes, one node less or twice, or all nodes in another order."""
    nodes = model.graph.node
    node, other = draw.choice(nodes), draw.choice(nodes)
    match draw.randrange(8):
        case 0:
            node.op_type = draw.choice((*OPERATORS, other.op_type))
        case 1 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice((*other.output, *other.input, "", "x"))
        case 2:
            nodes.remove(node)
        case 3:
            nodes.append(other)
        case 4:
            node.attribute.extend([*other.attribute])
        case 5 if node.attribute:
            attribute = draw.choice(node.attribute)
            attribute.i = draw.choice((0, -1, 1, 1 << 31, 1 << 62))
            attribute.ints.append(draw.choice((0, -1, 1 << 40)))
        case 6:
            node.domain = draw.choice(("evil", "com.microsoft", "ai.onnx.ml"))
        case _:
            order = [*nodes]
            draw.shuffle(order)
            del nodes[:]
            nodes.extend(order)


def _change_tensor(draw: random.Random, model: onnx.ModelProto) -> None:
    """Another shape, type or content of a constant, or one in another file."""
    tensors = [*model.graph.initializer]
    tensors += [each.t for node in model.graph.node for each in node.attribute if each.HasField("t")]
    tensor = draw.choice(tensors)
    match draw.randrange(5):
        case 0:
            del tensor.dims[:]
            tensor.dims.extend(draw.choice(SHAPES))
        case 1:
            tensor.data_type = draw.choice((0, 1, 6, 7, 8, 9, 10, 11, 16, 23, 99))
        case 2:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            place = tensor.external_data.add()
            place.key, place.value = "location", draw.choice(("guard.json", "../x", "/etc/passwd", "/dev/zero", ""))
        case 3:
            number = struct.pack("<f", draw.choice((0, 1, -1, 1e30, np.nan, np.inf)))
            tensor.raw_data = (number * len(tensor.raw_data))[: len(tensor.raw_data)]
        case _:
            tensor.raw_data = damaged(draw, tensor.raw_data)


def _change_ends(draw: random.Random, model: onnx.ModelProto) -> None:
    """Other names, types or shapes of what the graph takes and gives, or another version."""
    value = draw.choice([*model.graph.input, *model.graph.output])
    match draw.randrange(5):
        case 0:
            value.name = draw.choice(("x", "", "logits", "threshold", "\n\x1b[31m"))
        case 1:
            value.type.tensor_type.elem_type = draw.choice((0, 1, 7, 8, 11, 99))
        case 2:
            del value.type.tensor_type.shape.dim[:]
        case 3:
            model.opset_import[0].version = draw.choice((0, 1, 7, 13, 21, 999, -1))
        case _:
            model.ir_version = draw.choice((0, 1, 3, 11, 99))


CASES = {
    "damaged": damaged_guard,
    "archives": odd_archive,
    "records": forged_record,
    "tensors": forged_tensors,
    "graphs": forged_graph,
}
