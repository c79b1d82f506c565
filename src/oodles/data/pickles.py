"""A reader of the pickles that CIFAR is published in: integer arrays, text, numbers, lists and dicts, nothing else."""

import pickletools
from dataclasses import dataclass
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
TYPE, ARRAY, BUFFER, ENCODE = (
    "numpy dtype",
    "numpy._core.multiarray _reconstruct",
    "numpy._core.numeric _frombuffer",
    "_codecs encode",
)
NAMES = frozenset({"numpy ndarray", TYPE, ARRAY, BUFFER, ENCODE})
"""The only names that are understood; none of them is ever imported."""
INTEGERS = frozenset(f"{order}{kind}{size}" for order in "|<>=" for kind in "ui" for size in (1, 2, 4, 8))


def read_pickle(content: bytes) -> Any:
    """The value that a pickle describes; arrays are NumPy arrays where they are values of the outermost dict.

    The opcodes are interpreted here and not by :mod:`pickle`, so nothing can be imported or called, and the memory
    taken is bounded by the size of the file. Any other pickle, or a damaged one, is a ValueError.
    """
    reader = _Interpreter(len(content))
    try:
        value = reader.run(content)
        if not isinstance(value, dict):
            return value
        return {key: reader.array(item) if isinstance(item, _Call) else item for key, item in value.items()}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"damaged: {type(error).__name__}") from None


@dataclass(eq=False)
class _Call:
    """A type or an array as a pickle describes it: what it calls with which arguments, and the state it sets."""

    name: str
    arguments: Any
    state: Any = None


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
                name = " ".join([stack.pop(-2), stack.pop()]) if opcode == "STACK_GLOBAL" else value
                stack.append(name.replace("numpy.core.", "numpy._core."))
                if stack[-1] not in NAMES:
                    raise ValueError(f"it refers to {name.replace(' ', '.')[:60]!r}")
            case "REDUCE":
                arguments, name = stack.pop(), stack.pop()
                if name not in (TYPE, ARRAY, BUFFER, ENCODE):
                    raise ValueError("a call that CIFAR batches do not have")
                # numpy and pickle write no other encoding than Latin-1
                stack.append(self.as_bytes(arguments[0]) if name == ENCODE else _Call(name, arguments))
            case "BUILD":
                state = stack.pop()
                self.top(_Call).state = state
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

    def array(self, call: _Call) -> npt.NDArray[Any]:
        """Return the array of integers that a call describes."""
        if call.name == BUFFER:
            raw, kind, shape, order = call.arguments
        else:
            _, shape, kind, by_columns, raw = call.state
            order = "F" if by_columns else "C"
        dtype = "".join([kind.state[1], kind.arguments[0]])
        if dtype not in INTEGERS:
            raise ValueError("an array of something other than integers")
        if (
            not isinstance(shape, tuple)
            or len(shape) > 2
            or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
        ):
            raise TypeError
        return np.frombuffer(self.as_bytes(raw), dtype).reshape(shape, order="F" if order == "F" else "C")

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
