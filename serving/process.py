"""How a process that generates uses its machine."""

import ctypes
import gc
import sys

import torch

# The event loop hands on a token while the thread that computes prepares the next step: it should
# not wait for Python's 5 ms to get a word in.
_SWITCH_INTERVAL_S = 0.0005
# A step takes and frees megabytes over and over, and glibc by default gives them back to the system
# each time, to get them anew page by page.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 256 << 20
_SEPARATE_BYTES = 32 << 20


def prepare_process(num_threads: int) -> None:
    """Set what holds for a whole process: torch's threads, Python's turns, memory."""
    torch.set_num_threads(num_threads)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _SEPARATE_BYTES)
    if not gc.get_freeze_count():
        # All that the libraries are made of will stay. transformers has all objects gone through
        # when an engine stops, with Python's lock held: 0.2 s in which no other engine computes.
        gc.collect()
        gc.freeze()
