"""Write ``docs/images/serve-page.png``: the page of ``oodles serve`` in a browser.

The data must include ``cifar10-jpeg.zip``; Chromium must be installed (`make check-more` installs it).
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from studies import DATA, ROOT

IMAGE = ROOT / "docs" / "images" / "serve-page.png"
MAX_BYTES = 200_000


def main(data: Path = DATA) -> None:
    """Serve a guard, have every drawing scored, and keep what the browser shows."""
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "page.png"
        take(data, Path(folder), taken)
        with Image.open(taken) as picture:
            colours = picture.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            colours.save(IMAGE, optimize=True)
    size = IMAGE.stat().st_size
    print(f"{IMAGE}: {size} bytes")
    if size > MAX_BYTES:
        sys.exit(f"the image has more than {MAX_BYTES} bytes")


def take(data: Path, folder: Path, path: Path) -> None:
    """A picture of the page after every drawing; the last one is shown in detail."""
    from support.browser import chromium
    from support.page_guards import export_guards
    from support.serving import serving

    guards = export_guards(data, folder)
    with serving(guards / "ensemble.zip") as server, chromium() as browser:
        browser.open(server.address)
        browser.wait("#about", "Detector")
        for button in browser.all(".drawing"):
            button.click()
            browser.wait("#verdict", f"{button.text} (drawing)", "The score")
        browser.screenshot(path)
