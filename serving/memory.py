"""How much memory a model takes while it answers, and how much models may take together."""

import math
import subprocess
import sys
from pathlib import Path

import psutil

from serving.settings import EngineSettings
from serving.store.model_memory import ModelMemory

_CONTROL_GROUP = Path("/sys/fs/cgroup")
_ASK_GPU = "import torch; print(torch.cuda.mem_get_info()[0])"
PROCESS_BYTES = 256 << 20
"""What a process that computes takes by itself: 200 MB on a CPU; on a GPU, CUDA's own."""
FORK_SERVER_BYTES = 288 << 20
"""What the fork server of a replica takes by itself: the libraries, which its forks share."""
_CPU_SHARE, _GPU_SHARE = 0.5, 0.85
"""Of what is free when a replica starts; on a CPU, fine-tunes need the rest."""


def find_default_budget(num_sharing: int = 1) -> int:
    """Return the bytes that models may take where nobody says: a share of what is free now.

    So many replicas may come to share a CPU's memory, whether they are up already or not.
    """
    import torch

    if torch.cuda.is_available():
        return int(_find_free_gpu_bytes() * _GPU_SHARE)
    room = min(psutil.virtual_memory().available, _find_group_room())
    room = max(0, room - num_sharing * FORK_SERVER_BYTES)
    return int(room * _CPU_SHARE / num_sharing)


def _find_free_gpu_bytes() -> int:
    """Ask in a process that ends: whoever asks holds some of the GPU's memory from then on."""
    asked = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", _ASK_GPU], check=True, stdout=subprocess.PIPE
    )
    return int(asked.stdout)


def _find_group_room() -> float:
    """Return the bytes that the container lets its processes take beyond what they have."""
    try:
        limit = (_CONTROL_GROUP / "memory.max").read_text().strip()
        used = int((_CONTROL_GROUP / "memory.current").read_text())
    except OSError:  # there is none
        return math.inf
    return math.inf if limit == "max" else max(0, int(limit) - used)


def estimate_memory(memory: ModelMemory, settings: EngineSettings) -> int:
    """Return about how many bytes a model takes when loaded, with the process that it computes in.

    A head that is tied to the embedding has a copy of its own on a CPU (`serving.packed_linear`).
    The replica and the process that computes both have the tokenizer. Activations are not counted.
    """
    import torch

    cache = memory.cache_token_bytes * settings.page_size * settings.num_cache_blocks
    copy = 0 if torch.cuda.is_available() else memory.tied_head_bytes
    tokenizers = 2 * memory.tokenizer_bytes
    return PROCESS_BYTES + memory.weight_bytes + copy + cache + tokenizers
