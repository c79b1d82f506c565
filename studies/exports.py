"""Write ``docs/export.md``: export every detector with a small network, and say which cannot be."""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from support.exports import CASES, Case, guard_of, inputs, make_network

from oodles.deploy.export import TOLERANCE
from oodles.deploy.graph import IR_VERSION, OPSET
from oodles.errors import ArgumentError
from studies.pages import write_page


def main() -> None:
    """Try each detector and write the page; exit with an error if one is refused that should not be."""
    torch.set_num_threads(1)  # the network is too small for more
    lines, exported = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            result = attempt(case, Path(folder) / "guard.zip")
            print(f"{case.spec}: {result}")
            exported += result != "refused"
            lines.append(f"| `{case.spec}` | {result} |")
    write_page(
        "export",
        table="\n".join(lines),
        count=len(CASES),
        exported=exported,
        refused=len(CASES) - exported,
        opset=OPSET,
        ir_version=IR_VERSION,
        tolerance=f"{TOLERANCE:g}",
    )


def attempt(case: Case, path: Path) -> str:
    """The largest relative difference of scores on 64 inputs, or that the detector is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guard = guard_of(make_network(), case.spec)
    try:
        exported = guard.export(path, inputs=inputs(), overwrite=True)
    except ArgumentError as error:
        if not case.steps:
            sys.exit(f"{case.spec} cannot be exported: {error}")
        return "refused"
    return f"{exported.record['agreement']['score']:.0e}"
