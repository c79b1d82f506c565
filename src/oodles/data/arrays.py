"""Images in a NumPy file, read through a memory map and never all at once."""

from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from PIL import Image

from oodles.data.image_sets import ImageSet
from oodles.data.limits import MAX_PIXELS, regular_size
from oodles.data.transforms import MODES
from oodles.errors import DataError
from oodles.records.text import one_line

MAX_FILE = 1 << 46  # bytes; memory is only taken for the images that are being decoded
MAX_IMAGES = 100_000_000  # each has a name in memory


def read_array(path: Path) -> ImageSet:
    """The images in a ``.npy`` file: uint8 ``(n, height, width)`` grey, or with 1, 3 or 4 channels as the last axis.

    One image with channels, ``(height, width, 3)``, is read as well.
    """
    regular_size(path, MAX_FILE)
    try:
        pixels = open_memmap(path, mode="r")
    except Exception as error:  # NumPy parses the header as Python, which may fail in many ways
        raise DataError(f"{path} is not a complete NumPy file of images ({one_line(error)})") from None
    described = f"{path} holds {pixels.dtype} {pixels.shape}"
    coloured = pixels.shape[-1:] in {(count,) for count in MODES}
    fits = pixels.ndim == 3 or (pixels.ndim == 4 and coloured)
    if pixels.dtype != np.uint8 or not fits or not pixels.flags.c_contiguous:
        raise DataError(f"{described}; give uint8 (n, height, width), (n, height, width, 3) or (height, width, 3)")
    images = pixels if pixels.ndim == 4 else pixels[None] if coloured else pixels[..., None]
    count, height, width, _ = images.shape
    if not 0 < count <= MAX_IMAGES or not 0 < height * width <= MAX_PIXELS:
        raise DataError(
            f"{described}; give 1 to {MAX_IMAGES:,} images of at least one and at most {MAX_PIXELS:,} pixels"
        )
    names = [f"{path}[{row}]" for row in range(count)]
    grey = images[..., 0] if images.shape[3] == 1 else images
    return ImageSet(path.name, names, lambda row: Image.fromarray(np.array(grey[row])))
