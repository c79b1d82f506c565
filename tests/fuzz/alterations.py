"""How files of records and tensors are altered: bytes, files, fields of a record, and the header of a tensor file."""

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from oodles.detectors.registry import entries
from oodles.errors import OodlesError

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, 10**400, -0.0, 0.5, 1e308, -1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "\n\x1b[31m", "\ud800", "..", "../x", "/", "a" * 5000),
    *([], [[]], [None] * 2000, {}, {"": None}, {"class": "KNN", "arguments": {}}),
    [{"class": "MSP", "arguments": {}}] * 3,
)
SIZES = (0, 1, 2, 7000, 7072, 8000, 32767, 65535, 1 << 20, (1 << 31) - 1)


def in_one_line(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except OodlesError as error:
        if len(str(error).splitlines()) != 1:
            raise RuntimeError("an error of several lines") from error
        raise


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != ".lock")


def damaged(draw: random.Random, content: bytes, places: Sequence[int] = ()) -> bytes:
    """Flip bits, change, insert, remove or repeat bytes, or cut the end off; ``places`` says where that does harm."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        place = draw.choice(places) + draw.randrange(5) if places else draw.randrange(len(changed) + 1)
        match draw.randrange(8):
            case 0:
                del changed[place:]
            case 1:
                changed[place:place] = draw.randbytes(draw.choice((1, 8, 300, 1000)))
            case 2:
                changed[place:place] = changed[place : place + draw.randrange(400)]
            case 3:
                changed[place : place + 4] = struct.pack(draw.choice("<>") + "I", draw.choice(SIZES))
            case 4:
                del changed[place : place + draw.choice((1, 8, 1000))]
            case 5:
                changed[place : place + 8] = draw.choice((b"\0" * 8, b"\xff" * 8, b'"', b"}"))
            case 6 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case _:
                changed[place : place + 1] = draw.randbytes(1)
    return bytes(changed)


def lose_files(draw: random.Random, folder: Path) -> None:
    """A file disappears, is empty, is a folder, a link or a copy of another one."""
    file, other = draw.choice(files(folder)), draw.choice(files(folder))
    content = other.read_bytes()
    file.unlink()
    match draw.randrange(5):
        case 0:
            file.write_bytes(b"")
        case 1:
            file.mkdir()
        case 2:
            file.symlink_to(draw.choice((other.name, file.name, "/dev/zero", "/nowhere")))
        case 3:
            file.write_bytes(content)


def change_field(draw: random.Random, content: dict[str, Any]) -> None:
    """Replace, remove, add or exchange a value anywhere in a record."""
    holder, key = draw.choice([*places(content)])
    match draw.randrange(7):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(("x", "class", "arguments", "file", "rows", "k", "p", ""))] = draw.choice(VALUES)
        case 2:
            other, place = draw.choice([*places(content)])
            holder[key] = copy.deepcopy(other[place])
        case 3 if isinstance(holder[key], str):
            holder[key] = draw.choice(
                (*(entry.kind.__name__ for entry in entries().values()), "Score", "LogitDetector")
            )
        case 4 if isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] = draw.choice((holder[key] * 2, -holder[key], holder[key] + 0.5, holder[key] + 1))
        case _:
            holder[key] = copy.deepcopy(draw.choice(VALUES))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside, as what holds it and its key."""
    for key in [*value] if isinstance(value, dict) else range(len(value)):
        if value is not None and key not in ("kind", "schema"):
            yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def damaged_tensors(draw: random.Random, content: bytes) -> bytes:
    """Damage, more often than not in the header of a safetensors file."""
    if draw.random() < 0.4 or len(content) < 16:
        return damaged(draw, content)
    (length,) = struct.unpack("<Q", content[:8])
    header, rest = content[8 : 8 + length], content[8 + length :]
    match draw.randrange(3):
        case 0:
            header = header.replace(draw.choice((b"F32", b"I64")), draw.choice((b"F64", b"BOOL", b"F8_E4M3", b"I8")))
        case 1:
            shape = draw.choice(([2**32, 2**32], [2**64 - 1], [-1], [0, 2**63 - 1], [1e9]))
            header = header.replace(b'"shape":[', b'"shape":%s,"y":[' % json.dumps(shape).encode(), 1)
        case _:
            header = damaged(draw, header)
    length = draw.choice((len(header), len(header), len(header), 0, 2**63, 10**8))
    return struct.pack("<Q", length) + header + rest


def sealed(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "seal": hashlib.sha256(canonical.encode()).hexdigest()})


def strange_text(draw: random.Random, text: str) -> str:
    """The same record with repeated keys, deep nesting, very long numbers, or as another kind of text."""
    deep = draw.choice((10, 63, 64, 70, 900, 100_000))
    return draw.choice(
        (
            text.replace("{", '{"kind": "guard", ', 1),
            text.replace(": ", ': {"a": 1, "a": ', 1).replace(",", "},", 1),
            text.replace("{", '{"x": ' + "[" * deep + "]" * deep + ", ", 1),
            text.replace("{", '{"x": ' + '{"y": ' * deep + "1" + "}" * deep + ", ", 1),
            text.replace("{", '{"x": ' + "9" * 5000 + ", ", 1),
            text + text,
            "[" * deep,
            "\ufeff" + text,
            text[::-1],
            "",
        )
    )
