"""Disks that refuse to write: files may only grow to a limit, or belong to somebody else."""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """While it lasts, the operating system refuses to let a file of this process grow past ``size`` bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def obey_permissions() -> None:
    """From the next program on, this process may not read or write where permissions forbid it, not even as root."""
    if os.geteuid() == 0:
        drop_from_bounding_set = 24
        for capability in (1, 2):  # to override permissions, and those of reading
            assert ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0) == 0


@contextmanager
def ordinary_user() -> Iterator[None]:
    """While it lasts, this process may not write what belongs to the user who runs the tests, not even as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
