"""Memory estimates of loaded models, and the memory budget of a replica."""

import math
import subprocess
import sys
from pathlib import Path

import psutil

from serving.loading.model_memory import ModelMemory
from serving.settings import EngineSettings

_CONTROL_GROUP = Path("/sys/fs/cgroup")
GPU_QUERY = "import torch; print(torch.cuda.mem_get_info()[0])"
PROCESS_BYTES = 256 << 20
"""Memory of a core's process without its model: 200 MB on a CPU; on a GPU, CUDA's own."""
FORK_SERVER_BYTES = 288 << 20
"""Memory of a replica's fork server: the libraries, which its forks share."""
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


def estimate_adapter_memory(directory: Path) -> int:
    """Estimate the bytes that an adapter needs beside its base model, from its files.

    Its factors are in memory once more while they are in the batch (`serving.adapters`), and its
    tokenizer counts whether or not it is the base model's.
    """
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    tokenizer = directory / "tokenizer.json"
    return 2 * weights + (tokenizer.stat().st_size if tokenizer.is_file() else 0)
