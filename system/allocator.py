"""Allocator setting that returns freed memory of large bodies and rows to the system at once."""

import ctypes

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_LARGE_BYTES = 256 << 10


def return_large_blocks() -> None:
    """Make glibc map every block of 256 KiB or more separately; no effect without glibc.

    By default glibc raises this limit to the size of the largest block that was freed, up to
    32 MiB, and keeps twice as much at the end of the heap of each thread. A few bodies of 8 MB
    left the API with 40 MB that no Python object used. Tokenising a long row, whose lists grow by
    copying, took 490 MB by default and takes 290 MB with this setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
