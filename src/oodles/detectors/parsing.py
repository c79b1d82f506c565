"""Detectors from text: ``react(90)+dice(0.7)+energy``, ``knn(10)``, ``mypackage.detectors:MyDetector``."""

import ast
import difflib
import inspect
import re
from collections.abc import Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from oodles.detectors.arguments import shown
from oodles.detectors.base import Detector
from oodles.detectors.logit import CHAIN, LogitDetector, Shape, Sparsifier, Stage
from oodles.detectors.registry import entries
from oodles.detectors.score_only import ScoreDetector
from oodles.errors import ArgumentError
from oodles.records.calls import Call, import_object, read_call, read_expression

MAX_VALUE = 1e38  # single precision ends a little above
MAX_LENGTH, MAX_TERMS, MAX_ITEMS = 4000, 32, 100  # characters of a text, stages of a chain, items of a list
_PATH = re.compile(r"(^|\+)\s*([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


def parse(text: str) -> Detector:
    """Read a detector: any number of shapes, at most one sparsifier, at most one score (energy by default).

    Or a detector that is not a chain of stages: ``odin(1000, 0.004)``, ``mahalanobis``, ``default``; or one of your own
    by the path of its class, ``mypackage.detectors:MyDetector(k=3)``.

    >>> parse("react(90)+dice(0.7)").spec
    'react(90)+dice(0.7)+energy'
    >>> parse("odin(1000, 0.004)").spec
    'odin(epsilon=0.004)'
    """
    terms = [(kind, _arguments(text, name, kind, positional, named)) for name, kind, positional, named in _terms(text)]
    if len(terms) == 1:
        kind, arguments = terms[0]
        return kind(**arguments)
    scores = [partial(kind.function, **arguments) for kind, arguments in terms if issubclass(kind, ScoreDetector)]
    stages = [kind(**arguments) for kind, arguments in terms if issubclass(kind, Stage)]
    other = [kind for kind, _ in terms if not issubclass(kind, ScoreDetector | Stage)]
    if other:
        raise ArgumentError(f"{other[0].text_name()} in {text!r} is not a stage of a chain; use it alone")
    shapes = [stage for stage in stages if isinstance(stage, Shape)]
    sparsifiers = [stage for stage in stages if isinstance(stage, Sparsifier)]
    if len(sparsifiers) > 1 or len(scores) > 1:
        raise ArgumentError(f"{text!r} has more than one sparsifier or more than one score; keep one of each")
    score = {"score": scores[0]} if scores else {}
    if len(stages) == 1 and "score" in inspect.signature(type(stages[0])).parameters:
        kind, arguments = next(term for term in terms if issubclass(term[0], Stage))
        return kind(**arguments, **score)
    return LogitDetector(shape=shapes, sparsify=next(iter(sparsifiers), None), **score)


def as_detector(given: str | Detector) -> Detector:
    """A detector, given as such or as text."""
    if isinstance(given, Detector):
        return given
    if isinstance(given, str):
        return parse(given)
    raise ArgumentError(f"{given!r} is not a detector; give one, e.g. oodles.KNN(), or its text, e.g. 'knn'")


def detector_list() -> list[Detector]:
    """One of each detector that works on embeddings and logits, at its usual settings.

    >>> from oodles.detectors import MSP
    >>> len(detector_list()) > 40, isinstance(detector_list()[0], MSP)
    (True, True)
    """
    texts = [text for entry in entries().values() for text in entry.settings()]
    return [parse(text) for text in texts]


def _terms(text: str) -> list[tuple[str, type[Detector], list[Any], dict[str, Any]]]:
    """The terms of a chain: name, class, positional and named values."""
    if len(text) > MAX_LENGTH:
        raise ArgumentError(
            f"{text[:40]!r}... has {len(text):,} characters, more than the {MAX_LENGTH:,} of a detector"
        )
    paths: dict[str, tuple[str, str]] = {}

    def set_aside(match: re.Match[str]) -> str:
        paths[f"path{len(paths)}_"] = match[2], match[3]
        return f"{match[1]}path{len(paths) - 1}_"

    try:
        node = read_expression(_PATH.sub(set_aside, text))
        calls: list[Call] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            calls.insert(0, read_call(node.right))
            node = node.left
        calls.insert(0, read_call(node))
    except (ValueError, AttributeError):
        raise ArgumentError(f"{text!r} is not a detector; write e.g. 'react(90)+dice(0.7)+energy'") from None
    if len(calls) > MAX_TERMS:
        raise ArgumentError(f"{text[:40]!r}... is a chain of {len(calls)} stages; at most {MAX_TERMS} are allowed")
    return [
        (":".join(paths[name]), _user_class(*paths[name]), positional, named)
        if name in paths
        else (name, _kind(text, name), positional, named)
        for name, positional, named in calls
    ]


def _kind(text: str, name: str) -> type[Detector]:
    known = entries()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(known)}"
        raise ArgumentError(f"{name[:80]!r} in {text[:200]!r} is not a detector or stage; {hint}")
    return known[name].kind


def _user_class(module: str, name: str) -> type[Detector]:
    kind = import_object(module, name)
    if not inspect.isclass(kind) or not issubclass(kind, Detector):
        raise ArgumentError(f"{module}:{name} is not a class that derives from oodles.Detector")
    if kind.forward is Detector.forward:
        raise ArgumentError(f"{module}:{name} does not say how to score; it has to define forward")
    return kind


def _arguments(
    text: str, name: str, kind: type[Detector], positional: list[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """The values by the name of their parameter, checked against the types the constructor declares."""
    hidden = CHAIN if issubclass(kind, Stage) else ()
    parameters = {key: value for key, value in inspect.signature(kind).parameters.items() if key not in hidden}
    takes = ", ".join(parameters) or "no values"
    if len(positional) > len(parameters):
        raise ArgumentError(f"{name} takes {takes}, not {len(positional)} values, in {text!r}")
    arguments = dict(zip(parameters, positional, strict=False))
    twice = next((key for key in named if key in arguments), None)
    if twice is not None:
        raise ArgumentError(f"{name} in {text!r} is given {twice} twice")
    arguments |= named
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        raise ArgumentError(f"{name} has no {unknown[0]!r} in {text!r}; it takes {takes}")
    missing = [key for key, given in parameters.items() if given.default is given.empty and key not in arguments]
    if missing:
        raise ArgumentError(f"{name} in {text!r} needs {missing[0]}")
    try:
        hints = get_type_hints(kind.__init__)
    except (NameError, TypeError):  # a user's annotations may only be resolvable by a type checker
        hints = {}
    for key, value in arguments.items():
        hint = hints.get(key, Any)
        if isinstance(value, list | tuple | set | dict) and len(value) > MAX_ITEMS:
            raise ArgumentError(f"{name}({key}=...) is given {len(value):,} items; at most {MAX_ITEMS} are allowed")
        if not _fits(value, hint):
            size = f" below {MAX_VALUE:g}" if isinstance(value, int | float) and abs(value) >= MAX_VALUE else ""
            raise ArgumentError(f"{name}({key}={shown(value)}): expected {_in_words(hint)}{size}")
    return arguments


def _fits(value: Any, hint: Any) -> bool:
    """Whether a literal is of the declared type; types that no literal has are left to the constructor."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(_fits(each, inner[0]) for each in value)
    if hint in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_VALUE
    return hint is Any or not inspect.isclass(hint) or isinstance(value, hint)


def _in_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_in_words(each) for each in inner if each is not NoneType)
    if origin is not None:
        return f"a list, each item {_in_words(inner[0])}"
    words = {int: "a number", float: "a number", str: "a name in quotes", bool: "True or False"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))
