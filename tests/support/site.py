"""The documentation as the tests read it: the fenced blocks of a page, in order, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\S*)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: the language that follows the fence, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    text = path.read_text()
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 2) for found in FENCE.finditer(text)]


def pages(language: str) -> list[str]:
    """The pages that have a block in this language, by their names."""
    return [
        path.stem for path in sorted(DOCS.glob("*.md")) if any(block.language == language for block in blocks(path))
    ]


def commands(block: Block) -> list[str]:
    """The ``oodles`` commands of a block, without comments; one after a pipe has what is piped into it."""
    lines = (re.sub(r"\s{2,}#.*", "", line).strip() for line in block.text.replace("\\\n", " ").splitlines())
    return [line for line in lines if re.search(r"(^|\| |-m )oodles ", line)]


def arguments(command: str) -> tuple[str, list[str]]:
    """What is piped into an ``oodles`` command, and its arguments."""
    piped, _, own = command.rpartition(" | ")
    words = shlex.split(own)
    return piped, words[words.index("oodles") + 1 :]
