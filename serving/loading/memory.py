"""Memory estimates of loaded models, and the memory budget of a replica."""

import math
import subprocess
import sys
from pathlib import Path

import psutil

from model_files.same_tokenizer import find_tokenizer_difference
from model_files.tokenizer_settings import TOKENIZER_NAME
from model_files.weight_headers import ADAPTER_WEIGHTS_NAME, read_file_header, read_weight_headers
from serving.loading.model_memory import ModelMemory
from serving.settings import EngineSettings

_CONTROL_GROUP = Path("/sys/fs/cgroup")
GPU_QUERY = "import torch; print(torch.cuda.mem_get_info()[0])"
PROCESS_BYTES = 256 << 20
"""Memory of a core's process without its model: 200 MB on a CPU; on a GPU, CUDA's own."""
FORK_SERVER_BYTES = 288 << 20
"""Memory of a replica's fork server: the libraries, which its forks share."""
_TOKENIZER_FACTOR = 20
"""Memory of a tokenizer by the size of its file, at most.

Measured with 130,000 entries: 12 for a BPE, 14 for a WordPiece, 20 for a Unigram.
"""
_CPU_SHARE, _GPU_SHARE = 0.5, 0.85
"""Fractions of the memory that is free when a replica starts; on a CPU, training needs the rest."""


def find_default_budget(num_sharing: int = 1) -> int:
    """Return the default budget for models in bytes: a fraction of the memory that is free now.

    `num_sharing` replicas share a CPU's memory, including those that have not started yet.
    """
    import torch

    if torch.cuda.is_available():
        return int(_find_free_gpu_bytes() * _GPU_SHARE)
    return find_cpu_budget(num_sharing)


def find_cpu_budget(num_sharing: int = 1) -> int:
    """Return the default budget of a replica that computes on the CPU, in bytes."""
    memory = min(psutil.virtual_memory().available, _find_group_memory())
    memory = max(0, memory - num_sharing * FORK_SERVER_BYTES)
    return int(memory * _CPU_SHARE / num_sharing)


def _find_free_gpu_bytes() -> int:
    """Return the free GPU memory in bytes, read in a subprocess.

    Reading it creates a CUDA context, which occupies GPU memory until its process ends.
    """
    finished = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", GPU_QUERY], check=True, stdout=subprocess.PIPE
    )
    return int(finished.stdout)


def _find_group_memory() -> float:
    """Return the bytes left under the container's memory limit; infinite without a limit."""
    try:
        limit = (_CONTROL_GROUP / "memory.max").read_text().strip()
        used = int((_CONTROL_GROUP / "memory.current").read_text())
    except OSError:  # there is no cgroup v2 limit
        return math.inf
    return math.inf if limit == "max" else max(0, int(limit) - used)


def estimate_memory(memory: ModelMemory, settings: EngineSettings) -> int:
    """Estimate the bytes that a loaded model and its core's process need.

    On a CPU, a head that is tied to the embedding is copied (`serving.cpu.packed_linear`). The
    replica and the core's process each load the tokenizer. Activations are not counted.
    """
    import torch

    cache = memory.cache_token_bytes * settings.page_size * settings.num_cache_blocks
    copy = 0 if torch.cuda.is_available() else memory.tied_head_bytes
    tokenizers = 2 * memory.tokenizer_bytes
    return PROCESS_BYTES + memory.weight_bytes + copy + cache + tokenizers


def estimate_adapter_memory(directory: Path, base: Path) -> int:
    """Estimate the bytes that an adapter needs beside its base model, from the files of both.

    Its factors have the dtype of the base, and are in memory once more while they are in the batch
    (`serving.adapters`). Its tokenizer counts if it is not the base model's.
    """
    factors = read_file_header(directory / ADAPTER_WEIGHTS_NAME).values()
    item_bits = max(header.item_bits for header in read_weight_headers(base).values())
    weights = sum(header.num_elements for header in factors) * item_bits // 8
    own = directory / TOKENIZER_NAME
    if not own.is_file() or find_tokenizer_difference(directory, base) is None:
        return 2 * weights
    return 2 * weights + _TOKENIZER_FACTOR * own.stat().st_size
