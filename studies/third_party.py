"""Write ``THIRD_PARTY.md``: sources of data, and the licence of everything installed with the package."""

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

from studies import ROOT
from studies.pages import fill

PAGE = ROOT / "THIRD_PARTY.md"
EXTRAS = ("", "torch", "layers", "torchvision", "dataframe", "parquet", "onnx", "ray", "serve", "text")
"""What users install, ``""`` being the package alone; not the extras that only a repository needs."""


def ours() -> list[str]:
    """Our own requirements, from the project's file: what is installed may be older than that."""
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].items()
    marked = [(line.partition(";"), name) for name, lines in optional for line in lines]
    found: list[str] = project["dependencies"] + [
        f"{need} ; extra == {name!r}" + (f" and ({marker})" if marker else "") for (need, _, marker), name in marked
    ]
    return found


OURS = ours()


def plain(name: str) -> str:
    """The name by which pip knows a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(package: str, extras: frozenset[str]) -> list[Requirement]:
    """The requirements of an installed package that hold on this machine with these extras."""
    parsed = [Requirement(line) for line in (OURS if package == "oodles" else distribution(package).requires or [])]
    return [need for need in parsed if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras)]


def direct(extra: str) -> list[str]:
    """What ``oodles[extra]`` asks for, beside what it always asks for."""
    return [need.name for need in needs("oodles", frozenset({extra})) if (need.marker is None) == (extra == "")]


def closure(extra: str) -> set[str]:
    """Everything that ``oodles[extra]`` installs, directly and indirectly."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [("oodles", frozenset({extra, ""}))]
    while left:
        package, extras = left.pop()
        if (package, extras) not in seen:
            seen.add((package, extras))
            left += [(plain(need.name), frozenset({*need.extras, ""})) for need in needs(package, extras)]
    return {package for package, _ in seen} - {"oodles"}


def licence(installed: Distribution) -> str:
    """The licence in a package's metadata: as an expression, as a short text, or as a classifier."""
    metadata: Any = installed.metadata
    if expression := metadata.get("License-Expression"):
        return " ".join(expression.split())
    text = metadata.get("License") or ""
    if text and len(text) < 60 and "\n" not in text:  # otherwise it is the licence itself
        return text
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    if not classifiers:
        raise ValueError(f"{metadata['Name']} states no licence in its metadata; look it up")
    return ", ".join(line.rpartition(" :: ")[2] for line in classifiers)


def listed() -> dict[str, list[str]]:
    """Package -> the extras that bring it; none for what is always installed."""
    always = closure("")
    found: dict[str, list[str]] = {package: [] for package in always}
    for extra in EXTRAS[1:]:
        for package in closure(extra) - always:
            found.setdefault(package, []).append(extra)
    return dict(sorted(found.items()))


def main() -> None:
    """Write the page."""
    try:
        packages = listed()
    except PackageNotFoundError as missing:
        sys.exit(f"{missing.name} is not installed; install all extras with: make study NAME=third_party")
    rows = [f"| {name} | {', '.join(extras)} | {licence(distribution(name))} |" for name, extras in packages.items()]
    PAGE.write_text(fill("third-party", packages="\n".join(rows)))
    print(f"written: {PAGE}")
