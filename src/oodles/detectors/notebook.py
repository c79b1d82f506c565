"""A detector as HTML, which notebooks show: its arguments, and what it has learned."""

from html import escape
from typing import TYPE_CHECKING

from oodles.detectors.described import written

if TYPE_CHECKING:
    from oodles.detectors.base import Detector

MOST = 20  # lines of learned tensors that are shown


def as_html(detector: "Detector") -> str:
    """Two columns: arguments with their values, learned tensors with their shapes; everything is escaped."""
    learned = [
        (name, f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")
        for name, tensor in detector.named_buffers()
    ]
    given = [(name, written(value)) for name, value in detector.arguments().items()]
    state = "nothing to fit" if not detector.learns_from else "fitted" if detector.fitted else "not fitted"
    if len(learned) > MOST:
        learned = [*learned[:MOST], (f"and {len(learned) - MOST} more", "")]
    groups = (("argument", given), ("learned", learned))
    lines = [_line("th", kind, "") + "".join(_line("td", *pair) for pair in pairs) for kind, pairs in groups if pairs]
    caption = f"<caption><code>{escape(str(detector))}</code>: {state}</caption>"
    return f"<table>{caption}{''.join(lines)}</table>"


def _line(kind: str, *cells: str) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
