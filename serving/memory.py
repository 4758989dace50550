"""How much memory a model takes while it answers, and how much models may take together."""

import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from safetensors import safe_open

from serving.settings import EngineSettings

if TYPE_CHECKING:
    import torch

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


def estimate_memory(path: Path, settings: EngineSettings) -> int:
    """Return about how many bytes a model directory takes when loaded.

    With the process that it computes in. The cache holds a key and a value per layer, head and
    token, in the type of the weights. A head that is tied to the embedding has a copy of its own on
    a CPU (`serving.packed_linear`). Activations are not counted.

    Raises `OSError` or `ValueError` for a config that cannot be read.
    """
    import torch
    from transformers import AutoConfig

    whole: Any = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    config = whole.get_text_config()
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    dtype = config.dtype or whole.dtype or torch.float32
    token_bytes: int = 2 * config.num_hidden_layers * num_kv_heads * head_size * dtype.itemsize
    cache = token_bytes * settings.page_size * settings.num_cache_blocks
    is_tied = any(getattr(one, "tie_word_embeddings", False) for one in (whole, config))
    has_copy = is_tied and not torch.cuda.is_available()
    copy = config.vocab_size * config.hidden_size * dtype.itemsize if has_copy else 0
    return PROCESS_BYTES + _measure_weights(path, dtype) + copy + cache


def _measure_weights(path: Path, dtype: "torch.dtype") -> int:
    """Return the bytes of the weights in memory: files may hold a narrower type than the model."""
    num_bytes = num_weights = 0
    for file in path.glob("*.safetensors"):
        num_bytes += file.stat().st_size
        with safe_open(file, framework="numpy") as tensors:
            shapes = (tensors.get_slice(name).get_shape() for name in tensors.keys())  # noqa: SIM118
            num_weights += sum(map(math.prod, shapes))
    return max(num_bytes, num_weights * dtype.itemsize)
