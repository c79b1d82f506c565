"""A reader of the pickles that CIFAR is published in: integer arrays, text, numbers, lists and dicts, nothing else."""

import pickletools
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_OPCODES = 2_000_000
"""CIFAR-100's training set has about 300,000."""
NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT")
TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
VALUES = frozenset({*NUMBERS, *TEXTS, "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
NAMES = frozenset(
    {
        "numpy ndarray",
        "numpy dtype",
        "numpy._core.multiarray _reconstruct",
        "numpy._core.numeric _frombuffer",
        "_codecs encode",
    }
)
"""The only names that are understood; none of them is ever imported."""


def read_pickle(content: bytes) -> Any:
    """The value that a pickle describes; arrays are NumPy arrays where they are values of the outermost dict.

    The opcodes are interpreted here and not by :mod:`pickle`, so nothing can be imported or called, and the memory
    taken is bounded by the size of the file. Any other pickle, or a damaged one, is a ValueError.
    """
    try:
        value = _Interpreter(len(content)).run(content)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"damaged: {type(error).__name__}") from None
    if not isinstance(value, dict):
        return value
    return {key: item.values if isinstance(item, _Array) else item for key, item in value.items()}


class _Name:
    """A name that the pickle refers to."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("numpy.core.", "numpy._core.")
        if self.text not in NAMES:
            raise ValueError(f"it refers to {text.replace(' ', '.')[:60]!r}")


class _Type:
    """An integer type of NumPy's; its byte order comes later in the pickle."""

    def __init__(self, code: Any) -> None:
        if code not in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"):
            raise ValueError("an array of something other than integers")
        self.code, self.order = code, "|"


class _Array:
    """An array; its values may come later in the pickle."""

    def __init__(self) -> None:
        self.values: npt.NDArray[Any] | None = None

    def fill(self, shape: Any, kind: Any, fortran: bool, raw: bytes | bytearray) -> None:
        sizes = shape if isinstance(shape, tuple) and len(shape) <= 2 else (None,)
        if not isinstance(kind, _Type) or not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
            raise TypeError
        values = np.frombuffer(raw, np.dtype(kind.order + kind.code))
        self.values = values.reshape(sizes, order="F" if fortran else "C")


class _Interpreter:
    """The stack, the marks on it and the memo of a pickle that is being read."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.left = 2 * size  # bytes that may still be copied, since a pickle can name the same text again and again

    def run(self, content: bytes) -> Any:
        for count, (opcode, value, _) in enumerate(pickletools.genops(content)):
            if count > MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES:,} instructions")
            if opcode.name in VALUES:
                self.stack.append(value)
            else:
                self.execute(opcode.name, value)
        return self.stack.pop()  # genops ends at the opcode STOP, or raises

    def execute(self, opcode: str, value: Any) -> None:
        stack, memo = self.stack, self.memo
        match opcode:
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                memo[value] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(memo[value])
            case "MARK":
                self.marks.append(len(stack))
            case "APPEND":
                item = stack.pop()
                self.top(list).append(item)
            case "APPENDS":
                items = self.since_mark()
                self.top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self.since_mark() if opcode == "SETITEMS" else [stack.pop(-2), stack.pop()]
                self.set_items(self.top(dict), items)
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [stack.pop() for _ in range(TUPLES[opcode])]
                stack.append(tuple(items[::-1]))
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "EMPTY_LIST" | "LIST":
                stack.append(self.since_mark() if opcode == "LIST" else [])
            case "EMPTY_DICT" | "DICT":
                items = self.since_mark() if opcode == "DICT" else []
                stack.append({})
                self.set_items(stack[-1], items)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append(CONSTANTS[opcode])
            case "GLOBAL" | "STACK_GLOBAL":
                stack.append(_Name(" ".join([stack.pop(-2), stack.pop()]) if opcode == "STACK_GLOBAL" else value))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(self.make(stack.pop().text, arguments))
            case "BUILD":
                self.build(stack.pop(), stack[-1])
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise ValueError(f"the instruction {opcode}, which CIFAR batches do not have")

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError
        return self.stack[-1]

    def set_items(self, target: dict[Any, Any], items: list[Any]) -> None:
        for key, item in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes | int):  # the hash of nested tuples can take forever
                raise TypeError
            target[key] = item

    def make(self, name: str, arguments: Any) -> Any:
        """What a call of one of the known names would give."""
        if name == "numpy dtype":
            return _Type(arguments[0])
        if name == "numpy._core.multiarray _reconstruct":
            return _Array()
        if name == "numpy._core.numeric _frombuffer":
            raw, kind, shape, order = arguments
            array = _Array()
            array.fill(shape, kind, order == "F", self.as_bytes(raw))
            return array
        if name == "_codecs encode":
            return self.as_bytes(arguments[0])  # numpy and pickle write no other encoding than Latin-1
        raise ValueError(f"a call of {name}")

    def build(self, state: Any, target: Any) -> None:
        """Complete a type or an array."""
        if isinstance(target, _Type) and state[1] in ("|", "<", ">", "="):
            target.order = state[1]
        elif isinstance(target, _Array):
            _, shape, kind, fortran, raw = state
            target.fill(shape, kind, bool(fortran), self.as_bytes(raw))
        else:
            raise TypeError

    def as_bytes(self, raw: Any) -> bytes | bytearray:
        """Bytes, which Python 2 and the older protocols wrote as Latin-1 text."""
        if isinstance(raw, bytes | bytearray):
            return raw
        if not isinstance(raw, str):
            raise TypeError
        self.left -= len(raw)
        if self.left < 0:
            raise ValueError("the same text again and again")
        return raw.encode("latin1")
