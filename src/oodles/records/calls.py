"""``name(value, key=value)`` from text and back: names and literals, nothing that could run code."""

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from oodles.errors import ArgumentError
from oodles.extras import needed_by
from oodles.records.text import one_line

Call = tuple[str, list[Any], dict[str, Any]]
"""A name, its positional values, its named values."""


def read_expression(text: str) -> ast.expr:
    """The syntax tree of a one-line expression; ValueError if the text is not one."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{type(error).__name__} in {text[:40]!r}") from None


def read_call(node: ast.expr) -> Call:
    """A bare name, or a name called with literals; ValueError for anything else.

    >>> read_call(read_expression("random_k(0.9, seed=3)"))
    ('random_k', [0.9], {'seed': 3})
    """
    if isinstance(node, ast.Name):
        return node.id, [], {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError("neither a name nor a name called with values")  # noqa: TRY004 - the text is wrong, not a type
    try:
        named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords if word.arg}
        positional = [ast.literal_eval(value) for value in node.args]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{node.func.id} is given something that is not a literal") from error
    if len(named) != len(node.keywords):
        raise ValueError(f"{node.func.id} is given a key twice, or **")
    return node.func.id, positional, named


def write_call(name: str, arguments: Mapping[str, Any], bare: str = "") -> str:
    """``name(value, other=...)``: the argument ``bare`` without its name, parentheses only if needed.

    >>> write_call("odin", {"temperature": 1000, "epsilon": 0.004}, "temperature")
    'odin(1000, epsilon=0.004)'
    """
    given = {key: value.item() if hasattr(value, "item") else value for key, value in arguments.items()}
    inside = ", ".join(repr(value) if key == bare else f"{key}={value!r}" for key, value in given.items())
    return f"{name}({inside})" if inside else name


def import_module_here(module: str) -> ModuleType:
    """A module by its name; the current folder is searched too. For text that the user typed, never a file's."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with needed_by(module):
            return import_module(module)
    except (Exception, SystemExit) as error:  # a module of the user's may do anything
        raise ArgumentError(
            f"{module[:80]!r} cannot be imported ({one_line(error, kind=True)}); write package.module"
        ) from error


def import_object(module: str, name: str) -> Any:
    """What ``module:name`` refers to, under the same rule."""
    found = import_module_here(module)
    if not hasattr(found, name):
        raise ArgumentError(f"{module}:{name}: {module} has no {name}")
    return getattr(found, name)
