"""Memory of large bodies and rows goes back to the operating system as soon as it is free."""

import ctypes

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_LARGE_BYTES = 256 << 10


def return_large_blocks() -> None:
    """Let the C library map every block of 256 KiB or more by itself; has no effect without glibc.

    By default glibc raises this limit to the size of the largest block that was freed, up to
    32 MiB, and keeps twice as much at the end of the heap of each thread. A few bodies of 8 MB
    left the API with 40 MB that no Python object used. Tokenising a long row, whose lists grow by
    copies, took 490 MB where it takes 290 so.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
