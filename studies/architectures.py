"""Write ``docs/architectures.md``: search the heads of many architectures, and fail if one is wrong.

Every architecture is built with random weights; no data is needed.
"""

import sys
from collections.abc import Sequence

import torch
from support.architectures import ARCHITECTURES
from support.head_survey import Architecture, Found, Refused, survey

from studies.pages import write_page

Result = tuple[Architecture, Found | Refused]


def main() -> None:
    """Search and write; exit with an error, and leave the page as it is, if anything is wrong."""
    torch.set_num_threads(1)  # these networks are too small for more
    results: list[Result] = []
    problems = []
    for architecture in ARCHITECTURES:
        try:
            result = survey(architecture)
        except Exception as error:  # whatever oodles let through
            problems.append(f"{architecture.library} {architecture.name}: {type(error).__name__}: {error}")
            continue
        results.append((architecture, result))
        print(f"{architecture.library:13} {architecture.name}: {describe(result)}")
    if problems:
        sys.exit("\n".join(["", "wrong:", *problems]))
    found = [(architecture, result) for architecture, result in results if isinstance(result, Found)]
    refused = [(architecture, result) for architecture, result in results if isinstance(result, Refused)]
    write_page(
        "architectures",
        count=len(results),
        found_count=len(found),
        refused_count=len(refused),
        found="\n".join(found_line(*each) for each in found),
        refused="\n".join(refused_line(*each) for each in refused),
    )


def describe(result: Found | Refused) -> str:
    """A result in a few words."""
    return f"{result.kind} ({result.layer})" if isinstance(result, Found) else f"refused: {result.message}"


def found_line(architecture: Architecture, found: Found) -> str:
    """A line of the first table."""
    head = [found.kind, f"`{found.layer}`", str(found.width), str(found.classes)]
    return row([architecture.library, architecture.name, *head, "; ".join(found.warnings)])


def refused_line(architecture: Architecture, refused: Refused) -> str:
    """A line of the second table."""
    works = "; ".join(refused.remedies) or "nothing: it is not a classifier"
    return row([architecture.library, architecture.name, refused.message, works])


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
