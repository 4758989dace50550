"""Options of glibc's memory allocator for a process; no effect with another C library."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGE_BYTES = 256 << 10
_KEPT_BYTES = 256 << 20
_SEPARATE_BYTES = 32 << 20


def return_large_blocks() -> None:
    """Map every block of 256 KiB or more separately, so that it is returned once it is freed.

    By default glibc raises this limit to the size of the largest block that was freed, up to
    32 MiB, and keeps twice as much at the end of the heap of each thread. A few bodies of 8 MB
    left the API with 40 MB that no Python object used. Tokenising a long row, whose lists grow by
    copying, took 490 MB by default and takes 290 MB with this setting.
    """
    _set_options({_M_MMAP_THRESHOLD: _LARGE_BYTES})


def keep_freed_memory() -> None:
    """Keep up to 256 MiB of freed memory, for a process that allocates the same amount repeatedly.

    Each step of a generating process allocates and frees megabytes. By default glibc returns them
    to the system each time, and they are then faulted in again page by page.
    """
    _set_options({_M_TRIM_THRESHOLD: _KEPT_BYTES, _M_MMAP_THRESHOLD: _SEPARATE_BYTES})


def _set_options(options: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
