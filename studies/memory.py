"""Memory, measured in processes of their own (Linux)."""

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from studies import ROOT

CHILD = """
import json, sys
from importlib import import_module
module, name = sys.argv[1].split(":")
print(json.dumps(getattr(import_module(module), name)(*json.loads(sys.argv[2]))))
"""


def in_child(function: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Any:
    """Return the result of ``module:function`` in a fresh process; arguments and result are plain values."""
    command = [sys.executable, "-c", CHILD, function, json.dumps(arguments)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**(environment or {}), **os.environ}
    )
    if done.returncode:
        raise RuntimeError(f"{function}{arguments} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_growth(run: Callable[[], object]) -> int:
    """By how many bytes this process's own memory grows while ``run`` runs, at its peak.

    Pages of mapped files do not count: they are the system's cache, which it drops when memory is short.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed before would be used again and not counted
    before = own_memory()
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return max(peak, own_memory()) - before


def own_memory() -> int:
    """Bytes of memory that belong to this process alone, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
