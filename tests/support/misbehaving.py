"""An attack whose cases succeed, fail, hang, crash and take all memory in turn, to test the counting."""

import ctypes
import os
import random
import time
from collections import Counter
from pathlib import Path

import fuzz

from oodles.errors import DataError

CHUNK = 1
CASES = ("accepted", "refused", "traceback", "hang", "crash", "exit", "memory")
ROUNDS = len(CASES)


def run(rounds: int, seed: int, folder: Path) -> Counter[str]:
    """The case that the seed names, so that each is in a process of its own."""

    def case(generator: random.Random, place: Path) -> str:
        match CASES[seed]:
            case "refused":
                raise DataError("as intended")
            case "traceback":
                raise KeyError("not intended")
            case "hang":
                time.sleep(60)
            case "crash":
                ctypes.string_at(0)
            case "exit":
                os._exit(0)
            case "memory":
                bytearray(fuzz.MEMORY)
        return "accepted"

    return fuzz.tally(case, rounds, seed, folder, part="odd" if seed < 2 else "", seconds=0.2)
