"""An attack whose cases succeed, fail, hang, crash and take all memory, to test the counting."""

import ctypes
import os
import random
import time
from pathlib import Path

import fuzz

from oodles.errors import DataError

ROUNDS, CHUNK, SECONDS = 24, 1, 0.2
OUTCOMES = {
    "accept": fuzz.ACCEPTED,
    "refuse": fuzz.REFUSED,
    "fail": fuzz.TRACEBACK,
    "take all memory": fuzz.TRACEBACK,
    "hang": fuzz.HANG,
    "crash": fuzz.CRASH,
    "exit": fuzz.CRASH,
}


def chosen(generator: random.Random) -> str:
    return generator.choice([*OUTCOMES])


def case(generator: random.Random, place: Path) -> str:
    match chosen(generator):
        case "refuse":
            raise DataError("as intended")
        case "fail":
            raise KeyError("not intended")
        case "take all memory":
            bytearray(fuzz.MEMORY)
        case "hang":
            time.sleep(60)
        case "crash":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
    return fuzz.ACCEPTED


CASES = {"": case}
