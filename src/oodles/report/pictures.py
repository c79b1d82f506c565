"""Small copies of images to put into a page."""

import base64
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from PIL import Image

from oodles.data.limits import PIXELS
from oodles.data.readers import SUFFIXES, decode, open_image
from oodles.records.text import printable
from oodles.report.document import Picture

MAX_PICTURES = 64
SIDE = 112  # pixels of the longer side
QUALITY = 80


class Pictures:
    """Makes small copies, at most ``MAX_PICTURES`` in all, so that a page stays small and is written soon."""

    def __init__(self) -> None:
        self.left = MAX_PICTURES

    def of_file(self, path: str) -> Picture | None:
        """A copy of an image file; None if the name is not that of an image, as for rows of features."""
        if not path.lower().endswith(SUFFIXES):
            return None
        return self.of(lambda: open_image(Path(path)), path)

    def of(self, opened: Callable[[], AbstractContextManager[Image.Image]], name: str) -> Picture | None:
        """A copy of what ``opened`` opens, without pixels if that fails; None if there are enough pictures."""
        if not self.left:
            return None
        self.left -= 1
        try:
            with opened() as image, PIXELS.take(image.width * image.height):
                image.draft("RGB", (2 * SIDE, 2 * SIDE))  # a JPEG is decoded no larger than needed
                return _copy(decode(image), name)
        except Exception:  # whatever is wrong with one image, the others are shown
            return Picture(None, "no picture: the file is gone or cannot be read")


def _copy(image: Image.Image, name: str) -> Picture:
    if image.mode != "RGB":
        layered = image.convert("RGBA")
        image = Image.new("RGB", layered.size, "white")
        image.paste(layered, mask=layered.getchannel("A"))
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY, optimize=True)
    source = "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
    return Picture(source, f"small copy of {printable(name)}", *image.size)
