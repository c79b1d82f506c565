"""From the bytes of an image file to what a guard's graph takes, within the service's limits."""

from oodles.data.image_sets import decode
from oodles.data.limits import PIXELS, TooLargeError
from oodles.data.readers import open_bytes
from oodles.data.transforms import Transform
from oodles.deploy.artefact import Arrays
from oodles.deploy.exported import INPUT, uncropped
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


def _check_size(width: int, height: int, settings: Settings) -> None:
    if max(width, height) > settings.side or width * height > settings.pixels:
        limit = f"{settings.side:,} a side and {settings.pixels:,} in all"
        raise TooLargeError(f"{width} x {height} pixels, more than {limit}; send a smaller image")
