"""Matplotlib's figures as SVG inside a page: without outside references, in the colours of the page's theme."""

import hashlib
import io
import re
import warnings
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


def draw(drawing: Drawing, alternative: str, caption: str) -> Figure:
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
    prefix = "drawing-" + hashlib.sha256(content.getvalue()).hexdigest()[:12]
    referenced = {found.decode() for found in re.findall(rb"#([\w.]+)", content.getvalue())}
    for node in list(root.iter()):
        node.tag, node.tail = NAMESPACE.sub("", node.tag), None
        attributes = {NAMESPACE.sub("", name): value for name, value in node.attrib.items()}
        changed = {name: _attribute(node.tag, name, value, prefix, referenced) for name, value in attributes.items()}
        node.attrib = {name: value for name, value in changed.items() if value}
        for child in node.findall("{*}style"):  # it is for all of a document
            node.remove(child)
    width, height = root.get("viewBox", "0 0 1 1").split()[2:]
    root.attrib = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": alternative}
    return Figure(ElementTree.tostring(root, encoding="unicode"), alternative, caption)


def _attribute(tag: str, name: str, value: str, prefix: str, referenced: set[str]) -> str:
    """Return what an attribute becomes; empty if it is dropped."""
    match name:
        case "id":
            return f"{prefix}-{value}" if value in referenced else ""
        case "href":
            return f"#{prefix}-{value.removeprefix('#')}"
        case "clip-path":
            return value.replace("url(#", f"url(#{prefix}-")
        case "style":
            return _style(tag, value)
    return value


def _style(tag: str, value: str) -> str:
    rules = [rule.strip() for rule in value.split(";")]
    if tag == "text":
        rules = [rule for rule in rules if rule.startswith(KEPT_STYLES)]
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), "; ".join(filter(None, rules)))
