"""The peak memory of one worker, estimated before a run starts, as `peak_memory_bytes` measures it.

It depends on the rows only by the longest one. On GPUs that is what torch allocates, on CPUs what
is resident. The test compares the estimate with measured runs.
"""

from typing import Any, NamedTuple, TypeGuard

from training.preflight.requirements import ModelSize, count_training_bytes
from training.spec import TrainingSpec

_PROCESS_BYTES = 640_000_000
"""Python, torch, transformers, DeepSpeed and Ray in a worker; small runs measure 580 to 640 MB."""
_LAYER_VALUES = 17  # per token and unit of width: 34 bytes of Korthikanti et al. in half precision
_SCORE_VALUES = 2.5  # per head and pair of tokens: their 5 bytes
_LOGIT_BYTES = 16  # per token and entry of the vocabulary
_HALF, _FULL = 2, 4


class ModelShape(NamedTuple):
    """What the memory of a forward pass depends on."""

    num_layers: int
    width: int
    num_heads: int
    vocabulary: int

    @classmethod
    def from_config(cls, config: Any) -> "ModelShape | None":
        """Read the shape from a configuration of transformers; None if it has no such figures."""
        text = config.get_text_config()
        layers, width, heads, vocabulary = (
            getattr(text, name, None)
            for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
        )
        if not (_is_count(layers) and _is_count(width) and _is_count(heads)):
            return None
        return cls(layers, width, heads, vocabulary if isinstance(vocabulary, int) else 0)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and value > 0


def estimate_worker_memory(
    spec: TrainingSpec, size: ModelSize, shape: ModelShape, longest: int, *, on_gpu: bool
) -> int:
    """Estimate the peak bytes of the worker that needs the most, for rows of `longest` tokens.

    It is the sum of the process (on a CPU), the worker's share of weights, gradients and optimizer
    state, the largest layer that ZeRO-3 gathers, activations, and the logits of all tokens of a
    micro batch. If few tokens are learned, fewer logits are computed, and less is needed.
    """
    num_workers = spec.min_workers or spec.num_workers
    weights, gradients, states = count_training_bytes(spec, size)
    if on_gpu:
        states = 0 if spec.offload_optimizer else states
        weights = 0 if spec.offload_parameters else weights
    share = (weights + gradients + states) // num_workers
    gathered = 0
    if spec.sharding_stage == 3 and num_workers > 1:
        layer = size.num_parameters // max(1, shape.num_layers)
        gathered = 2 * _count_bytes(on_gpu=on_gpu) * max(layer, shape.vocabulary * shape.width)
    layers = -(-shape.num_layers // spec.num_stages)
    working = estimate_activations(spec, shape, longest, layers, on_gpu=on_gpu)
    logits = _LOGIT_BYTES * count_batch_tokens(spec, longest) * shape.vocabulary
    return (0 if on_gpu else _PROCESS_BYTES) + share + gathered + working + logits


def count_batch_tokens(spec: TrainingSpec, longest: int) -> int:
    """Return the most tokens that a micro batch has, padding included."""
    if spec.micro_batch_size is None:
        return spec.micro_batch_tokens
    return min(spec.micro_batch_tokens, spec.micro_batch_size * longest)


def estimate_activations(
    spec: TrainingSpec, shape: ModelShape, longest: int, num_layers: int, *, on_gpu: bool
) -> int:
    """Estimate the bytes that the forward pass of a micro batch keeps for the backward pass.

    By Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models"
    (arXiv 2205.05198), equation 2: s b h (34 + 5 a s / h) bytes per layer in half precision. The
    second part, the scores of attention, is not kept by the fused kernels of GPUs. On a CPU values
    count as fp32: kernels convert to it, and the allocator keeps what it once had. With activation
    checkpointing, only the input of each layer is kept, and all of one layer.
    """
    num_tokens = count_batch_tokens(spec, longest)
    width_values = num_tokens * shape.width
    scores = 0 if on_gpu else num_tokens * shape.num_heads * min(longest, num_tokens)
    layer = int(_LAYER_VALUES * width_values + _SCORE_VALUES * scores)
    kept = (
        (width_values * num_layers + layer)
        if spec.activation_checkpointing
        else (layer * num_layers)
    )
    return _count_bytes(on_gpu=on_gpu) * kept


def _count_bytes(*, on_gpu: bool) -> int:
    return _HALF if on_gpu else _FULL
