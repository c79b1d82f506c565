"""From an image file, or from pixels, to what a guard's graph takes, within the service's limits."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from oodles.data.image_sets import decode
from oodles.data.limits import PIXELS, TooLargeError
from oodles.data.readers import open_bytes
from oodles.data.transforms import Transform
from oodles.deploy.artefact import Arrays
from oodles.deploy.exported import INPUT
from oodles.deploy.inputs import uncropped
from oodles.errors import DataError
from oodles.serve.problems import problem_with_image
from oodles.serve.settings import Settings


def image_arrays(content: bytes, transform: Transform, settings: Settings) -> Arrays:
    """One image, decoded, resized and cropped; size and format are checked before anything is decoded."""
    try:
        with open_bytes(content) as image:
            _check_size(*image.size, settings)
            with PIXELS.take(transform.pixels(*image.size)):
                pixels = transform(decode(image))
    except Exception as error:  # Pillow's decoders raise all kinds
        raise problem_with_image(error) from None
    return {INPUT: uncropped(pixels[None], transform)}


def pixel_arrays(pixels: npt.NDArray[np.uint8], transform: Transform, settings: Settings) -> Arrays:
    """Images as uint8 ``(n, height, width, 3)``, resized one by one; the graph would need memory for all at once."""
    _, height, width, _ = pixels.shape
    try:
        _check_size(width, height, settings)
        with PIXELS.take(transform.pixels(width, height)):
            prepared = np.stack([transform(Image.fromarray(each)) for each in pixels])
    except DataError as error:
        raise problem_with_image(error) from None
    return {INPUT: uncropped(prepared, transform)}


def _check_size(width: int, height: int, settings: Settings) -> None:
    if max(width, height) > settings.side or width * height > settings.pixels:
        limit = f"{settings.side:,} a side and {settings.pixels:,} in all"
        raise TooLargeError(f"{width} x {height} pixels, more than {limit}; send a smaller image")
