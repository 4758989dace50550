"""The disk space and the memory that a run needs, worked out from its settings before it starts.

Two figures each: what the run needs in any case, for a refusal, and what it is likely to need, for
a warning. The bytes per parameter are those of AdamW with fp32 master weights: 4 for the weights,
8 for the two moments, and `precision` for weights and gradients in the pass.
"""

from typing import NamedTuple

from training.spec import TrainingSpec

_MASTER_BYTES = 4
_MOMENT_BYTES = 8
_MARGIN = 1.1  # activations, buffers, files that are not weights


class Need(NamedTuple):
    """Bytes that are needed in any case, and bytes that are likely to be needed."""

    certain: int
    likely: int


def estimate_checkpoint(spec: TrainingSpec, num_parameters: int) -> Need:
    """Estimate one sharded checkpoint: fp32 weights, moments, and the module below stage 3."""
    certain = (_MASTER_BYTES + _MOMENT_BYTES) * num_parameters
    module = 0 if spec.zero_stage == 3 else _count_pass_bytes(spec) * num_parameters
    return Need(certain, int(_MARGIN * (certain + module)))


def estimate_disk(spec: TrainingSpec, num_parameters: int, *, has_trained: bool) -> Need:
    """Estimate the room that a run's folder needs for checkpoints and the model.

    A checkpoint is complete before an older one is removed, so there is one more than
    `keep_checkpoints`. Of a run that has trained only the model is certain: it may be at its end.
    """
    checkpoint = estimate_checkpoint(spec, num_parameters)
    model_bytes = _count_export_bytes(spec) * num_parameters
    may_end_early = spec.early_stopping_patience or spec.max_steps
    num_saved = 1 if may_end_early else spec.epochs  # at least
    num_kept = min(spec.keep_checkpoints, num_saved)
    num_written = min(spec.keep_checkpoints + 1, num_saved)
    certain = max(num_written * checkpoint.certain, num_kept * checkpoint.certain + model_bytes)
    num_likely = spec.keep_checkpoints + 1 + (spec.keep == "best")
    if not spec.save_every_steps:
        num_likely = min(num_likely, spec.epochs)
    likely = num_likely * checkpoint.likely + int(_MARGIN * model_bytes)
    return Need(model_bytes if has_trained else certain, likely)


def estimate_memory(spec: TrainingSpec, num_parameters: int, *, on_gpu: bool) -> tuple[Need, Need]:
    """Estimate the memory of all workers' hosts together, and that of one GPU.

    The second is 0 without GPUs. Activations, which depend on the rows, are not counted as certain,
    nor are gradients, of which stages 2 and 3 need not hold all at once.
    """
    num_workers = spec.min_workers or spec.num_workers
    is_half = _count_pass_bytes(spec) < _MASTER_BYTES
    optimizer = _MOMENT_BYTES + (_MASTER_BYTES if is_half else 0)
    num_weights = 1 if spec.zero_stage == 3 else num_workers  # copies of each in the cluster
    num_gradients = 1 if spec.zero_stage >= 2 else num_workers
    num_states = 1 if spec.zero_stage >= 1 else num_workers
    weights = _count_pass_bytes(spec) * num_parameters * num_weights
    gradients = _count_pass_bytes(spec) * num_parameters * num_gradients
    states = optimizer * num_parameters * num_states
    if not on_gpu:
        return Need(weights + states, int(_MARGIN * (weights + gradients + states))), Need(0, 0)
    on_host = (states if spec.offload_optimizer else 0) + (
        weights if spec.offload_parameters else 0
    )
    on_device = weights + states - on_host
    device = Need(on_device // num_workers, int(_MARGIN * (on_device + gradients)) // num_workers)
    return Need(on_host, int(_MARGIN * on_host)), device


def _count_export_bytes(spec: TrainingSpec) -> int:
    """Bytes of a weight of the published model."""
    if spec.export_dtype == "auto":
        return _count_pass_bytes(spec)
    return 4 if spec.export_dtype == "fp32" else 2


def _count_pass_bytes(spec: TrainingSpec) -> int:
    """Bytes of a weight in the forward and backward pass; 'auto' may become bf16."""
    return 4 if spec.precision == "fp32" else 2
