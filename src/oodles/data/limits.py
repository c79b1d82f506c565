"""What a file of images may cost before it is refused, and memory that decoding threads share."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from stat import S_ISREG

from oodles.errors import DataError

MAX_PIXELS = 50_000_000
"""The pixels of one image."""
MAX_BYTES = 4 * MAX_PIXELS
"""The bytes of one image file, on disk or unpacked."""
NOTHING = nullcontext()


class TooLargeError(DataError):
    """An image has more pixels or bytes than are decoded."""


class SharedLimit:
    """A limit on what all threads hold together: one that wants more waits until others are done.

    Whoever holds a part of it must not ask for more of it, or two could wait for each other forever.
    """

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._changed = threading.Condition()

    def take(self, amount: int) -> AbstractContextManager[None]:
        """Hold ``amount`` during the ``with`` block, at most all there is; less than 1 % of it is not counted."""
        return NOTHING if amount < self._size // 100 else self._hold(min(amount, self._size))

    @contextmanager
    def _hold(self, amount: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


PIXELS = SharedLimit(2 * MAX_PIXELS)
"""The pixels being decoded or resized at any moment, by all threads of the process; a pixel takes 8 to 20 bytes."""
FILE_BYTES = SharedLimit(2 * MAX_BYTES)
"""The bytes of the image files that are open at any moment."""


def regular_size(path: Path, limit: int) -> int:
    """The size of a regular file of at most ``limit`` bytes; pipes, devices and folders are refused unopened."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    if not S_ISREG(found.st_mode):
        raise DataError(f"{path} is not a regular file, but a folder, a pipe or a device")
    if found.st_size > limit:
        raise TooLargeError(f"{path} has {found.st_size:,} bytes, more than {limit:,}")
    return found.st_size


def unpacked_limit(packed: int) -> int:
    """The bytes that an archive of ``packed`` bytes may unpack to.

    Archives of images hardly shrink them. What grows a hundredfold was made to fill a disk or the memory.
    """
    return max(1_000_000_000, 100 * packed)
