"""Check a built site: every link inside it leads somewhere, and no page loads anything from elsewhere."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
NOT_LOADED = {"canonical", "prev", "next", "search", "index", "author", "help", "copyright"}  # kinds of <link>


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element is called, links to and loads."""
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        wanted = LOADS.get(tag)
        if wanted in given and given.get("rel", "") not in NOT_LOADED:
            self.loads.append(given[wanted])


def problems(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and each file that comes from elsewhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        elsewhere = (each for each in page.loads if urlsplit(each).netloc)
        found += [f"{name} loads {address}, which is not part of the site" for address in elsewhere]
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name} links to {address}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{name} links to {address}, a place that does not exist")
    return found


def main(site: Path) -> None:
    """Print what is wrong, and exit with 1 if anything is."""
    site = site.resolve()
    found = problems(site)
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages, all links lead somewhere")
    sys.exit(bool(found))
