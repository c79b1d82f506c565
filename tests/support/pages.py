"""A report as a reader's program sees it: its elements, its texts, and what it would load."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

VOID = {"meta", "img", "br", "link", "input", "hr"}
LOADING = {"src", "href", "xlink:href", "data", "poster", "srcset", "action", "formaction", "background"}


def _spaced(text: str) -> str:
    return " ".join(text.split())


class Page(HTMLParser):
    """The elements of a page; raises if they are not properly nested."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.source = text
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> is not properly nested"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """Everything that is shown."""
        return _spaced(" ".join(self.texts))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check_page(path: Path) -> Page:
    """What holds for every report; returns the page."""
    page = Page(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 5_000_000
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base"}
    assert "://" not in page.source.replace("data:image/jpeg;base64,", "")
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in LOADING:
                assert value is not None
                assert value.startswith(("#", "data:image/jpeg;base64,")), (tag, name, value[:80])
    assert not re.search(r"url\((?!#)|@import", page.source)
    assert all(attributes.get("alt") for attributes in page.all("img"))
    for attributes in page.all("svg"):
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for _, attributes in page.elements if "href" in attributes}
    assert {f"#{each}" for each in ids} >= links
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels)), "no level is skipped"
    assert page.all("html") == [{"lang": "en"}]
    _check_same_facts(page, json.loads(path.with_suffix(".json").read_text()))
    return page


def _check_same_facts(page: Page, record: dict[str, Any]) -> None:
    """Everything that the JSON says in words, and every number of a table, is on the page."""
    text = page.text
    for part in record["parts"]:
        for said in (part["title"], part["recommendation"], *part["summary"], *part["facts"].values()):
            assert _spaced(said) in text, said
        for section in part["sections"]:
            for said in (section["heading"], *section["paragraphs"]):
                assert _spaced(said) in text, said
            for figure in section.get("figures", []):
                assert _spaced(figure["caption"]) in text
                labels = [_spaced(each["aria-label"] or "") for each in page.all("svg")]
                assert _spaced(figure["alternative"]) in labels
            for row in (row for table in section.get("tables", []) for row in table["rows"]):
                for cell in row.values():
                    assert any(shown in text for shown in _shown(cell)), cell
            for card in (card for gallery in section.get("galleries", []) for card in gallery["inputs"]):
                assert _spaced(card["name"]) in text
                assert all(_spaced(fact) in text for fact in card["facts"])


def _shown(cell: Any) -> list[str]:
    value = cell["value"] if isinstance(cell, dict) else cell
    if value is None:
        return ["-"]
    if isinstance(value, str):
        return [_spaced(value)]
    return [f"{value:.1f}", f"{value:.2f}", f"{value:.3f}"] + ([f"{value:,d}"] if isinstance(value, int) else [])
