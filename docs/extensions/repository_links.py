"""Links to files outside of ``docs`` lead to the repository; in pages they are as GitHub needs them."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")


def lead_to_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the links of a page that leave the folder of the pages; a file that is not there is an error."""
    if "/" in page:  # for pages in a folder of their own, .. is the folder of the others
        return
    root, base = Path(app.srcdir).parent, app.config.html_theme_options["github_url"]

    def address(link: re.Match[str]) -> str:
        if not (root / link[1]).exists():
            raise ExtensionError(f"{page} links to ../{link[1]}, which does not exist")
        return f"]({base}/blob/main/{link[1]}"

    source[0] = OUTSIDE.sub(address, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at every page before it is parsed."""
    app.connect("source-read", lead_to_repository)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
