"""Write ``docs/choose-a-detector.md`` from what other pages have measured."""

import re
from string import Formatter

from studies.pages import DOCS, fill, write_page

SPECS = {
    "ash_s": "ash_s(90)",
    "chain": "react(97)+scale(65)+dice(0.05)",
    "dice": "dice(0.9)",
    "react90": "react(90)",
    "scale": "scale(85)",
    "vra": "vra(60)",
}
"""The names of placeholders that are not those of detectors."""
FAR = ("rejects", "distances", "directions", "accepts")
"""The placeholders for lists of detectors by the far inputs that they reject."""
MISSED = 1.0
"""The percentage of far inputs up to which a detector counts as one that rejects them."""
ENSEMBLES = ("default", "mme")
STUDY = {"relu": "nine", "signed": "signed"}
"""The columns of the study's table of single detectors."""


def main() -> None:
    """Read the tables and write the page."""
    write_page("choose-a-detector", **values())


def page() -> str:
    """The page as it should be."""
    return fill("choose-a-detector", **values())


def values() -> dict[str, str]:
    """The value of every placeholder in the template."""
    costs = _table("detectors", "Needs and costs")
    results = _table("default-detector", "Single detectors")
    found: dict[str, str] = {}
    far = _far(_table("detectors", "Far away"))
    keys = [name.removesuffix("_score") for name in _placeholders()]
    compared = {SPECS.get(key, key) for key in keys}
    for name in _placeholders():
        if name in far:
            shown = [spec for spec in far[name] if name != "accepts" or spec in compared]
            found[name] = ", ".join(f"`{spec}`" for spec in shown)
            continue
        if name in ("best_relu", "best_relu_value"):
            singles = {spec: float(row[STUDY["relu"]]) for spec, row in results.items() if spec not in ENSEMBLES}
            best = min(singles, key=singles.__getitem__)
            found |= {"best_relu": f"`{best}`", "best_relu_value": results[best][STUDY["relu"]]}
            continue
        key, _, column = name.rpartition("_")
        spec = SPECS.get(key, key)
        found[name] = costs[spec][column] if column in ("fit", "score") else results[spec][STUDY[column]]
    return found


def _far(table: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """The detectors that reject all far inputs, all but special directions, all but longer ones, and the others."""
    found: dict[str, list[str]] = {name: [] for name in FAR}
    for spec, row in table.items():
        missed = {column for column, cell in row.items() if column != "name" and float(cell) > MISSED}
        if not missed:
            place = "rejects"
        elif not missed & {"longer", "random", "one unit"}:
            place = "distances"
        else:
            place = "accepts" if missed & {"random", "one unit"} else "directions"
        found[place].append(spec)
    return found


def _placeholders() -> set[str]:
    text = (DOCS / "templates" / "choose-a-detector.md").read_text()
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def _table(page: str, heading: str) -> dict[str, dict[str, str]]:
    """The first table under a heading: its rows by the detector in their first cell, each by the names of columns."""
    text = (DOCS / f"{page}.md").read_text().partition(f"## {heading}\n")[2]
    lines = [
        line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", text.partition("\n## ")[0], re.MULTILINE)
    ]
    header, _, *rows = lines
    header = header if len(header) == len(rows[0]) else ["", *header]
    return {_spec(row[0]): dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)}


def _spec(cell: str) -> str:
    return cell.strip("`* ").removesuffix("+energy")
