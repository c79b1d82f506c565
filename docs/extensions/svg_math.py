"""Formulas as SVG when the site is built: pages need neither a script nor fonts from elsewhere to show them."""

from functools import cache
from html import escape
from typing import Any
from xml.etree import ElementTree

import ziamath
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

SIZE = 20  # pixels per em of the SVG, which is shown in em so that it follows the size of the text
TALLEST = 8  # em
ziamath.config.svg2 = False  # every browser knows the older form


@cache
def svg(formula: str, *, inline: bool) -> str:
    """A formula as one ``<svg>`` in the colour of the text, with its source as the text that is read aloud."""
    try:
        drawn = ziamath.Latex(formula, size=SIZE, color="currentColor", inline=inline)
        element, (width, height) = drawn.svgxml(), drawn.getsize()
    except Exception as error:  # the parser has no common class of errors
        raise ExtensionError(f"the formula {formula!r} cannot be drawn: {error}") from None
    if height > TALLEST * SIZE:  # a bracket that was stretched too far
        raise ExtensionError(f"the formula {formula!r} is {height / SIZE:.0f} em high; split it, or use \\Big brackets")
    lowered = f"vertical-align:{drawn.getyofst() / SIZE:.3f}em;" if inline else ""
    element.set("width", f"{width / SIZE:.3f}em")
    element.set("height", f"{height / SIZE:.3f}em")
    element.set("style", f"{lowered}overflow:visible")
    element.set("role", "img")
    element.set("aria-label", " ".join(formula.split()))
    return ElementTree.tostring(element, encoding="unicode")


def show_inline(writer: Any, node: nodes.math) -> None:
    """A formula in a line."""
    writer.body.append(f'<span class="formula">{svg(node.astext(), inline=True)}</span>')
    raise nodes.SkipNode


def show_block(writer: Any, node: nodes.math_block) -> None:
    """A formula of its own, wider than a phone if it must be: then it scrolls."""
    name = f' id="{escape(node["ids"][0])}"' if node["ids"] else ""
    writer.body.append(f'<div class="formula"{name}>{svg(node.astext(), inline=False)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer that ``html_math_renderer`` names."""
    app.add_html_math_renderer("svg", (show_inline, None), (show_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
