"""How much of a file lies in memory already: reading that measures memory, whatever the disk is like.

Asks the kernel (mincore) about a mapping that is never touched, so that asking brings no page in.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_READ, _SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value


def cached_fraction(paths: Iterable[Path]) -> float | None:
    """Share of the pages of all files that are resident; None where the kernel does not say, or nothing is there."""
    resident = pages = 0
    for path in paths:
        counted = _pages(path)
        if counted is None:
            return None
        resident, pages = resident + counted[0], pages + counted[1]
    return resident / pages if pages else None


def _pages(path: Path) -> tuple[int, int] | None:
    """(resident, all) pages of one file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return 0, 0
        address = libc.mmap(None, size, _READ, _SHARED, descriptor, 0)
        if address == _FAILED:
            return None
        count = -(-size // mmap.PAGESIZE)
        vector = (ctypes.c_ubyte * count)()
        failed = libc.mincore(address, size, vector)
        libc.munmap(address, size)
        return None if failed else (sum(entry & 1 for entry in bytes(vector)), count)
    finally:
        os.close(descriptor)
