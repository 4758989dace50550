"""How a process that generates uses its machine."""

import ctypes

import torch

# A step takes and frees megabytes over and over, and glibc by default gives them back to the system
# each time, to get them anew page by page.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 256 << 20
_SEPARATE_BYTES = 32 << 20


def prepare_process(num_threads: int) -> None:
    """Set what holds for a whole process: torch's threads, and what becomes of freed memory."""
    torch.set_num_threads(num_threads)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _SEPARATE_BYTES)
