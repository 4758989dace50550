"""The disk space and memory that a run needs, estimated from its settings before it starts.

Each estimate has two figures: the certain need, for a refusal, and the likely need, for a warning.
The bytes per parameter are those of AdamW with fp32 master weights: 4 for the weights, 8 for the
two moments, and those of `precision` for weights and gradients in the forward and backward pass.
"""

from typing import NamedTuple

from training.spec import TrainingSpec

_MASTER_BYTES = 4
_MOMENT_BYTES = 8
_MARGIN = 1.1  # activations, buffers, files that are not weights


class ModelSize(NamedTuple):
    """The parameters of a model, and those that are learned: all, or those of an adapter."""

    num_parameters: int
    num_learned: int


class Need(NamedTuple):
    """Bytes that are certainly needed, and bytes that are likely to be needed."""

    certain: int
    likely: int


def estimate_checkpoint(spec: TrainingSpec, size: ModelSize) -> Need:
    """Estimate one sharded checkpoint of what is learned.

    That is fp32 weights, moments, and below stage 3 the module.
    """
    certain = (_MASTER_BYTES + _MOMENT_BYTES) * size.num_learned
    module = 0 if spec.sharding_stage == 3 else _count_pass_bytes(spec) * size.num_learned
    return Need(certain, int(_MARGIN * (certain + module)))


def estimate_model(spec: TrainingSpec, size: ModelSize) -> Need:
    """Estimate the weights that a run publishes: those of its adapter, or of a complete model.

    An adapter that starts from the base weights is likely to have twice the learned factors (see
    `training.adapters.initial`). The weights of a base model that are only read do not count.
    """
    is_adapter = spec.adapter is not None and spec.adapter.export == "adapter"
    certain = _count_export_bytes(spec) * (size.num_learned if is_adapter else size.num_parameters)
    starts_large = is_adapter and spec.adapter is not None and spec.adapter.init != "default"
    return Need(certain, int(_MARGIN * certain) * (2 if starts_large else 1))


def estimate_disk(spec: TrainingSpec, size: ModelSize, *, has_trained: bool) -> Need:
    """Estimate the disk space that a run's folder needs for checkpoints and the model.

    A checkpoint is complete before an older one is removed, so there is one more than
    `keep_checkpoints`. For a run that has trained, only the model is certain: the run may be at its
    end.
    """
    checkpoint = estimate_checkpoint(spec, size)
    model = estimate_model(spec, size)
    may_end_early = spec.early_stopping_patience or spec.max_steps
    num_saved = 1 if may_end_early else spec.epochs  # at least
    num_kept = min(spec.keep_checkpoints, num_saved)
    num_written = min(spec.keep_checkpoints + 1, num_saved)
    certain = max(num_written * checkpoint.certain, num_kept * checkpoint.certain + model.certain)
    num_likely = spec.keep_checkpoints + 1 + (spec.keep == "best")
    if not spec.save_every_steps:
        num_likely = min(num_likely, spec.epochs)
    likely = num_likely * checkpoint.likely + model.likely
    return Need(model.certain if has_trained else certain, likely)


def estimate_memory(spec: TrainingSpec, size: ModelSize, *, on_gpu: bool) -> tuple[Need, Need]:
    """Estimate the total memory of all workers' hosts, and the memory of one GPU.

    The second estimate is 0 without GPUs. To verify an adapter, or to merge it, one host also holds
    the whole base model once the workers have ended. Activations are not certain, because they
    depend on the rows. Gradients are not certain, because stages 2 and 3 need not hold all of them
    at once.
    """
    num_workers = spec.min_workers or spec.num_workers
    weights, gradients, states = count_training_bytes(spec, size)
    export = _count_export_memory(spec, size)
    if not on_gpu:
        likely = int(_MARGIN * max(weights + gradients + states, export))
        return Need(max(weights + states, export), likely), Need(0, 0)
    on_host = (states if spec.offload_optimizer else 0) + (
        weights if spec.offload_parameters else 0
    )
    on_device = weights + states - on_host
    device = Need(on_device // num_workers, int(_MARGIN * (on_device + gradients)) // num_workers)
    host = max(on_host, export)
    return Need(host, int(_MARGIN * host)), device


def count_training_bytes(spec: TrainingSpec, size: ModelSize) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer state of all workers together.

    Each stage of ZeRO shards one more of them (Rajbhandari et al. 2020, arXiv 1910.02054, table 1).
    """
    num_workers = spec.min_workers or spec.num_workers
    is_half = _count_pass_bytes(spec) < _MASTER_BYTES
    optimizer = _MOMENT_BYTES + (_MASTER_BYTES if is_half else 0)
    num_replicas = num_workers // spec.num_stages
    num_weights = 1 if spec.sharding_stage == 3 else num_replicas  # copies of each in the cluster
    num_gradients = 1 if spec.sharding_stage >= 2 else num_replicas
    num_states = 1 if spec.sharding_stage >= 1 else num_replicas
    weights = int(_count_weight_bytes(spec) * size.num_parameters * num_weights)
    gradients = _count_pass_bytes(spec) * size.num_learned * num_gradients
    return weights, gradients, optimizer * size.num_learned * num_states


def _is_merged(spec: TrainingSpec) -> bool:
    return spec.adapter is not None and spec.adapter.export == "merged"


def _count_export_memory(spec: TrainingSpec, size: ModelSize) -> int:
    """Return the bytes of the base model that an adapter is verified on; 0 without an adapter.

    It is merged in fp32, and not quantised.
    """
    if spec.adapter is None:
        return 0
    per_weight = _MASTER_BYTES if _is_merged(spec) else _count_pass_bytes(spec)
    return per_weight * size.num_parameters


def _count_export_bytes(spec: TrainingSpec) -> int:
    """Return the bytes per weight of the published model."""
    if spec.export_dtype == "auto":
        return _count_pass_bytes(spec)
    return 4 if spec.export_dtype == "fp32" else 2


def _count_weight_bytes(spec: TrainingSpec) -> float:
    """Return the bytes per weight of the model in memory, most of which may be quantised."""
    return {"nf4": 0.5, "int8": 1.0}.get(spec.quantization, _count_pass_bytes(spec))


def _count_pass_bytes(spec: TrainingSpec) -> int:
    """Return the bytes per weight in the forward and backward pass; 'auto' may become bf16."""
    return 4 if spec.precision == "fp32" or spec.strategy == "ddp" else 2
