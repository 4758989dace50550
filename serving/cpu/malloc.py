"""Process-wide settings of a generating process: threads and memory allocation."""

import ctypes

import torch

# Each step repeatedly allocates and frees megabytes. By default glibc returns them to the system
# each time and then faults them in again page by page.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 256 << 20
_SEPARATE_BYTES = 32 << 20


def prepare_process(num_threads: int) -> None:
    """Set torch's number of threads, and make glibc keep freed memory."""
    torch.set_num_threads(num_threads)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _SEPARATE_BYTES)
