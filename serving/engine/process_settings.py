"""Process-wide settings of a generating process: threads and memory allocation."""

import torch

from system.allocator import keep_freed_memory


def prepare_process(num_threads: int) -> None:
    """Set torch's number of threads, and make glibc keep freed memory."""
    torch.set_num_threads(num_threads)
    keep_freed_memory()
