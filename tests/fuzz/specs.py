"""Hostile texts where a detector is expected: too long, too deep, with absurd numbers, or not a detector at all.

A text is refused in one short line, or gives a detector whose own text gives the same detector. Small ones are fitted.
"""

import inspect
import random
from functools import cache
from pathlib import Path

from oodles.detectors import parse
from oodles.detectors.network_detector import is_tuned, needs_network
from oodles.detectors.registry import entries
from oodles.errors import ArgumentError, OodlesError
from oodles.features import Features
from oodles.testing import example_features

from . import ACCEPTED, NON_FINITE, REFUSED

ROUNDS, SHORT, CHUNK = 2000, 80, 500
MAX_LINE = 5000

NUMBERS = (
    *("0", "1", "2", "10", "-1", "-3", "0.5", "2.5", "90", "99.9", "100", "-0.0", "1e-320", "1e-9", "1e9", "1e18"),
    *("1e23", "1e38", "1e308", "1e999", "-1e999", "0x" + "f" * 40, "0x" + "f" * 3900, "9" * 3900, "10**9", "1_000_000"),
    *("18446744073709551616", "2147483648", "0b1", "1j", "nan", "inf", "float('nan')", "True", "None", "..."),
)
VALUES = (
    *("'x'", "''", "b'x'", "[]", "()", "{}", "{1}", "[1, 2]", "['a']", "['msp', 'knn']", "['msp'] * 9", "[['msp']]"),
    *("'activation'", "'mean'", "'fisher'", "'\\x00'", "'\ud800'", "'" + "x" * 3000 + "'", "[" * 90 + "]" * 90),
    *("-" * 900 + "1", "not " * 500 + "1", "lambda: 0", "x", "knn(3)", "__import__('os')", "[0] * 10**9", "f'{1}'"),
    *("['msp'" + ", 'msp'" * 500 + "]", "('a',) + ('b',)", "*[1]", "**{}", "2 ** 9999", "'a' * 10 ** 9"),
)
WHOLE = (
    *("", " ", "+", "++", "energy+", "+energy", "energy++msp", "energy-msp", "energy()()", "energy.x", "energy[0]"),
    *("(" * 150 + "msp" + ")" * 150, "(" * 3000, "msp" + "+msp" * 30, "react" + "+react" * 990, "knn" + "\n" * 900),
    *("\x00", "\ud800", "knn;import os", "knn#", "knn\\", "'knn'", "knn if 1 else msp", "[knn]", "0", "os:system"),
    *("nowhere:X", "os:path", "oodles.detectors:KNN", "oodles.detectors:Detector", "a" * 3999, "a" * 4001, "." * 3999),
    *("oodles.detectors:Detector()", "x:" * 1000, "react+" * 500 + "msp", "not " * 900 + "msp", "é", "\uff4bnn"),
    "dice​",
)


def hostile_text(draw: random.Random, folder: Path) -> str:
    text = _text(draw)
    try:
        detector = parse(text)
    except ArgumentError as error:
        line = str(error)
        if len(line.splitlines()) != 1 or len(line) > MAX_LINE:
            raise RuntimeError(f"not one line: {line[:200]!r}") from error
        return REFUSED
    again = parse(detector.spec)
    if again.spec != detector.spec:
        raise RuntimeError(f"{text[:200]!r} is {detector.spec}, which is {again.spec}")
    if needs_network(detector) or not is_tuned(detector):
        return ACCEPTED
    try:
        scores = detector.fit(_features()).score(_features())
    except OodlesError as error:
        if len(str(error).splitlines()) != 1:
            raise RuntimeError(f"not one line: {error}") from error
        return REFUSED
    return NON_FINITE if bool(scores.isinf().any()) else ACCEPTED


@cache
def _features() -> Features:
    return example_features(60, 10, 4)


def _text(draw: random.Random) -> str:
    """A chain of one to three stages with arguments of which some make sense, or something else altogether."""
    if draw.random() < 0.15:
        return draw.choice(WHOLE)
    text = draw.choice(("+", "+", " + ", "\n+")).join(_stage(draw) for _ in range(draw.choice((1, 1, 1, 2, 3))))
    if draw.random() < 0.15:
        place = draw.randrange(len(text) + 1)
        text = text[:place] + draw.choice(("(", ")", "+", ",", "'", "=", "\x00", "\n", "[", "*", ":")) + text[place:]
    return text


def _stage(draw: random.Random) -> str:
    name = draw.choice([*entries()])
    named = [*inspect.signature(entries()[name].kind).parameters, "x", "score", "shape", "self", "__class__"]
    arguments = []
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 60))):
        value = draw.choice(NUMBERS if draw.random() < 0.7 else VALUES)
        arguments.append(value if draw.random() < 0.5 else f"{draw.choice(named)}={value}")
    return f"{name}({', '.join(arguments)})" if arguments or draw.random() < 0.3 else name


CASES = {"": hostile_text}
