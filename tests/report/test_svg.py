import re
from xml.etree.ElementTree import fromstring as parse_xml

import numpy as np
import pytest

from oodles import plots
from oodles.report.svg import draw

HOSTILE = "<script>alert('$x$')</script> & \"more\" 日本"


def drawing(name: str = "svhn") -> str:
    values = {name: np.array([1.0, 2.0, 0.5]), "textures": np.array([0.2, 0.1, 3.0])}
    figure = plots.binned_scores(np.arange(4.0), {"id": np.ones(3)}, values, threshold=1.5, unit="rows")
    return draw(figure, f"scores of {name}", "").markup


def test_a_drawing_has_texts_the_colours_of_the_page_and_nothing_from_outside() -> None:
    svg = drawing()
    root = parse_xml(svg)  # noqa: S314
    texts = [node.text for node in root.iter("text")]
    assert {"svhn", "textures", "threshold", "rows"} <= set(texts)
    assert root.attrib == {"viewBox": root.get("viewBox"), "role": "img", "aria-label": "scores of svhn"}
    assert "://" not in svg
    assert "font-family" not in svg
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", svg))
    assert colours == set(), "every colour follows the theme"
    themed = set(re.findall(r"var\([\w-]+\)|currentColor", svg))
    assert themed == {"var(--id)", "var(--ood-0)", "var(--ood-1)", "currentColor"}


def test_references_stay_inside_the_drawing() -> None:
    svg = drawing()
    assert drawing() == svg
    ids = re.findall(r' id="([^"]+)"', svg)
    assert ids
    assert len(ids) == len(set(ids))
    used = {*re.findall(r'href="#([^"]+)"', svg), *re.findall(r"url\(#([^)]+)\)", svg)}
    assert used == set(ids)
    other = drawing("places")
    assert not {*ids} & {*re.findall(r' id="([^"]+)"', other)}, "two drawings have no ids in common"


def test_names_are_data(recwarn: pytest.WarningsRecorder) -> None:
    svg = drawing(HOSTILE)
    assert "<script" not in svg
    assert HOSTILE in [node.text for node in parse_xml(svg).iter("text")]  # noqa: S314
    assert not recwarn.list, "a letter that Matplotlib cannot draw is the browser's to draw"
