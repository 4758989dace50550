"""The memory and the time that merging an adapter into its base model may take.

Needs no torch: the process that serves HTTP asks before it starts another one.
"""

import re
from collections import Counter
from pathlib import Path

from model_files.weight_headers import ADAPTER_WEIGHTS_NAME, read_file_header, read_weight_headers

NO_MEMORY_STATUS, NO_DISK_STATUS = 3, 4
"""Exit statuses of the process: memory is short, or the disk is full."""
_FP32_BYTES = 4
_PROCESS_BYTES = 1 << 30  # Python with torch, transformers and PEFT, and its buffers
_TEMPORARY_COPIES = 3  # of the largest tensor: the product, its sum, and a conversion
_ADAPTER_COPIES = 3
_MIN_TIMEOUT_S = 1800.0
_SLOWEST_BYTES_PER_S = 5e6
_EXPERT = re.compile(r"\.experts\.\d+\..*")


def estimate_merge_memory(adapter: Path, base: Path) -> int:
    """Estimate the bytes of memory that a merge needs: the base in fp32, and some more.

    The experts of a layer count as one tensor, as in memory. Raises `ValueError` for weight files
    that cannot be read.
    """
    tensors: Counter[str] = Counter()
    for name, header in read_weight_headers(base).items():
        tensors[_EXPERT.sub(".experts", name)] += header.num_elements * _FP32_BYTES
    headers = read_file_header(adapter / ADAPTER_WEIGHTS_NAME).values()
    adapter_bytes = sum(header.num_elements * _FP32_BYTES for header in headers)
    temporary = _TEMPORARY_COPIES * max(tensors.values(), default=0)
    return tensors.total() + temporary + _ADAPTER_COPIES * adapter_bytes + _PROCESS_BYTES


def find_merge_timeout(needed_bytes: int) -> float:
    """Return the seconds after which a merge that needs this memory is taken to hang."""
    return _MIN_TIMEOUT_S + needed_bytes / _SLOWEST_BYTES_PER_S
