"""Matplotlib's figures as SVG inside a page: small, without outside references, in the colours of the page's theme."""

import hashlib
import io
import re
import warnings
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing

from oodles.plots import ID_COLOUR, INK, OOD_COLOURS, STYLE
from oodles.report.document import Figure

# the page defines these variables once for each theme
VARIABLES = {INK: "currentColor", ID_COLOUR.lower(): "var(--id)"} | {
    colour.lower(): f"var(--ood-{place})" for place, colour in enumerate(OOD_COLOURS)
}
KEPT_STYLES = ("text-anchor", "font-size", "font-weight")  # of texts, whose font is the page's
NAMESPACE = re.compile(r"^\{[^}]*\}")


def draw(drawing: Drawing, alternative: str, caption: str, data: Mapping[str, Any]) -> Figure:
    """Return a drawing as a figure of a report; the same drawing gives the same markup.

    Texts stay texts, black becomes the colour of the page's text, and the palette of ``oodles.plots`` becomes CSS
    variables.
    """
    content = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}), warnings.catch_warnings():
        # letters that Matplotlib's font does not have: the browser draws the text
        warnings.filterwarnings("ignore", message="Glyph")
        drawing.savefig(content, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(content.getvalue())  # noqa: S314  (written above)
    prefix = "drawing-" + hashlib.sha256(content.getvalue()).hexdigest()
    _simplify(root, prefix, set(re.findall(rb"#([\w.]+)", content.getvalue())))
    width, height = root.get("viewBox", "0 0 1 1").split()[2:]
    root.attrib = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": alternative}
    return Figure(ElementTree.tostring(root, encoding="unicode"), prefix, alternative, caption, data)


def _simplify(node: ElementTree.Element, prefix: str, referenced: set[bytes]) -> None:
    """Drop what a page does not need, in place: styles for all of a document, unused ids, fonts, digits."""
    node.tag = NAMESPACE.sub("", node.tag)
    node.tail = None
    node.text = node.text if node.tag == "text" else None
    attributes = {NAMESPACE.sub("", name): value for name, value in node.attrib.items()}
    node.attrib = {}
    for name, value in attributes.items():
        changed = _attribute(node.tag, name, value, prefix, referenced)
        if changed:
            node.set(name, changed)
    for child in list(node):
        _simplify(child, prefix, referenced)
        empty = child.tag in ("g", "defs") and not len(child)
        invisible = child.tag == "path" and child.get("style") == "fill: none"
        if child.tag in ("style", "metadata") or empty or invisible:
            node.remove(child)


def _attribute(tag: str, name: str, value: str, prefix: str, referenced: set[bytes]) -> str:
    """What an attribute becomes; empty if it is dropped."""
    match name:
        case "id":
            return f"{prefix}-{value}" if value.encode() in referenced else ""
        case "href":
            return f"#{prefix}-{value.removeprefix('#')}"
        case "clip-path":
            return value.replace("url(#", f"url(#{prefix}-")
        case "style":
            return _style(tag, value)
        case "transform" if value.startswith("rotate(-0 "):
            return ""
        case "d" | "x" | "y" | "transform":
            rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
            return " ".join(rounded.split())
    return value


def _style(tag: str, value: str) -> str:
    rules = [rule.strip() for rule in value.split(";")]
    if tag == "text":
        rules = [rule for rule in rules if rule.startswith(KEPT_STYLES)]
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), "; ".join(filter(None, rules)))
