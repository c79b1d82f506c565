"""``docs/performance.md`` from the results: tables, plots and what misses its target; the prose is its template's."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from studies.bench.pictures import plot_detectors, plot_metrics
from studies.bench.results import Row, detector_and_size, from_record
from studies.pages import DOCS, markdown_table, write_page

RESULTS = DOCS / "performance.json"
IMAGES = DOCS / "images" / "performance"
PACKAGES = ("torch", "numpy", "scipy", "pytorch-ood", "scikit-learn", "faiss-cpu")
NAMES = (
    "suite",
    "extraction",
    "detectors",
    "dice",
    "metrics",
    "neighbours",
    "startup",
    "guard",
    "scoring",
    "growth",
    "larger_than_memory",
)
"""The benchmarks, in the order in which they run and appear."""
SIDES = ("ours", "other")
NOT_MEASURED = "Not measured yet."


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


class Report:
    """The results of every benchmark that has run, each with its machine; kept as JSON beside the page."""

    def __init__(self, path: Path = RESULTS) -> None:
        self.path = path
        self.parts: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def replace(self, name: str, rows: Sequence[Row], minutes: float) -> None:
        """Take the results of a benchmark in place of earlier ones."""
        about = {"machine": machine(), "load": round(os.getloadavg()[1], 1), "minutes": round(minutes, 1)}
        self.parts[name] = {**about, "rows": [row.as_record() for row in rows]}
        self.parts = {name: self.parts[name] for name in NAMES if name in self.parts}

    def update(self, name: str, rows: Sequence[Row]) -> None:
        """Take some results in place of earlier ones of the same comparison; the others stay as they are."""
        new = {(row.name, row.against): row for row in rows}
        kept = [new.pop((row.name, row.against), row) for row in self.rows(name)]
        self.parts[name]["rows"] = [row.as_record() for row in (*kept, *new.values())]

    def rows(self, name: str) -> list[Row]:
        """The rows of one benchmark; none if it has not run."""
        return [from_record(record) for record in self.parts.get(name, {}).get("rows", [])]

    def write(self) -> None:
        """The JSON, the plots and the page."""
        self.path.write_text("{\n" + ",\n".join(map(_as_json, self.parts, self.parts.values())) + "\n}\n")
        IMAGES.mkdir(parents=True, exist_ok=True)
        plot_detectors(self.rows("detectors"), IMAGES / "detectors.png")
        plot_metrics(self.rows("metrics"), IMAGES / "metrics.png")
        write_page("performance", **self.values())

    def values(self) -> dict[str, str]:
        """What the template's placeholders stand for."""
        sizes = {"growth": ("largest", "smallest")}
        tables = {name: table(self.rows(name), sizes.get(name, SIDES)) for name in NAMES if name != "detectors"}
        rows = self.rows("detectors")
        return tables | {
            "machine": self.machines(),
            "summary": self.summary(),
            "missed": self.missed(),
            "detector_count": str(len({row.against for row in rows})),
            "fit_detectors": pivot([row for row in rows if row.name.startswith("fit ")]),
            "score_detectors": pivot([row for row in rows if row.name.startswith("score ")]),
        }

    def machines(self) -> str:
        """The machine of each benchmark, those with the same one together."""
        groups: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            about = part["machine"]
            packages = ", ".join(f"{package} {number}" for package, number in about["packages"].items())
            threads = f"{about['threads']} thread{'' if about['threads'] == 1 else 's'}"
            text = (
                f"{about['cores']} cores ({about['processor']}), {threads}, {about['memory']} of memory, "
                f"Python {about['python']}, {packages}"
            )
            load = f"{name} ({part['minutes']:g} min, load {part['load']:g})"
            groups.setdefault(text, []).append(load)
        return "\n".join(f"- {text}: {', '.join(names)}" for text, names in groups.items())

    def summary(self) -> str:
        """How many targets each benchmark meets."""
        lines = []
        for name in self.parts:
            found = [row.met for row in self.rows(name)]
            counts = [len(found), len([met for met in found if met]), *map(found.count, ("yes", "noise", "no"))]
            lines.append([name, *map(str, counts)])
        return markdown_table(["benchmark", "comparisons", "with a target", "met", "within noise", "missed"], lines)

    def missed(self) -> str:
        """The rows beyond their target by more than the spread."""
        rows = [(name, row) for name in self.parts for row in self.rows(name) if row.met == "no"]
        if not rows:
            return "None is missed."
        return "\n".join(
            f"- {name}: {row.name}: {_number(row.ratio)} against {row.against}, {row.goal}" for name, row in rows
        )


def table(rows: Sequence[Row], sides: tuple[str, str] = SIDES) -> str:
    """Rows as Markdown; the memory column only if some row has it."""
    if not rows:
        return NOT_MEASURED
    memory = any(row.memory is not None for row in rows)
    head = ["what", "against", "ratio", "range", "target", "met", *sides]
    head += ["peak MB"] if memory else []
    lines = []
    for row in rows:
        what = f"{row.name} ({row.note})" if row.note else row.name
        cells = [what, row.against, _ratio(row), _spread(row), row.goal, row.met]
        cells += [_quantity(row.ours, row.unit), _quantity(row.other, row.unit)]
        lines.append(cells + (["" if row.memory is None else f"{row.memory:,.0f}"] if memory else []))
    return markdown_table(head, lines)


def pivot(rows: Sequence[Row]) -> str:
    """One line per detector, one column per size: how many times as fast as the peer, and the spread."""
    if not rows:
        return NOT_MEASURED
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        detector, size = detector_and_size(row)
        cells.setdefault(detector, {})[size] = row
    sizes = list(dict.fromkeys(size for found in cells.values() for size in found))
    lines = [
        [f"`{detector}`", next(iter(found.values())).against, *(_cell(found.get(size)) for size in sizes)]
        for detector, found in cells.items()
    ]
    return markdown_table(["detector", "pytorch-ood's", *sizes], lines)


def _as_json(name: str, part: dict[str, Any]) -> str:
    """A benchmark's results with one line per row."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in part["rows"])
    about = {key: value for key, value in part.items() if key != "rows"}
    return f'"{name}": {json.dumps(about)[:-1]}, "rows": [\n{rows}\n]}}'


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cell(row: Row | None) -> str:
    """A speed-up and its spread; bold if it misses its target, with a dagger if the ranks differ from the peer's."""
    if row is None:
        return ""
    text = f"{_number(row.ratio)} ({_spread(row)}){'†' if 'ranks differ' in row.note else ''}"
    return f"**{text}**" if row.met == "no" else text


def _ratio(row: Row) -> str:
    return f"power {row.ratio:.2f}" if row.kind == "exponent" else f"{_number(row.ratio)} x"


def _spread(row: Row) -> str:
    return f"{_number(row.low)} to {_number(row.high)}" if row.repeats > 1 else "once"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _quantity(value: float, unit: str) -> str:
    if unit == "s" and value < 1:
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
