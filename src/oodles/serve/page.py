"""Pages of the service as single documents, each with a policy that lets a browser run nothing else."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

PART = re.compile(r"<!-- ([a-z]+)\.(css|js) -->")
TAGS = {"css": "style", "js": "script"}
POLICY = "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Page(NamedTuple):
    """The document and its Content-Security-Policy."""

    html: bytes
    policy: str


@cache
def read_page(name: str) -> Page:
    """A file of the folder ``page`` with the styles and scripts that it names inside it."""
    folder = files("oodles.serve") / "page"
    sources: dict[str, list[str]] = {tag: [] for tag in TAGS.values()}

    def insert(found: re.Match[str]) -> str:
        tag, content = TAGS[found[2]], (folder / f"{found[1]}.{found[2]}").read_text("utf-8")
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        sources[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{content}</{tag}>"

    html = PART.sub(insert, (folder / name).read_text("utf-8"))
    allowed = "; ".join(f"{tag}-src {' '.join(hashes) or repr('none')}" for tag, hashes in sources.items())
    return Page(html.encode(), f"default-src 'none'; {allowed}; {POLICY}")
