"""Export of a checkpoint's adapter merged with its base model: a complete model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from storage import durable
from storage.scratch import build_in_scratch
from training.checkpoint.reference_logits import Probe, read_probe
from training.export.adapter import load_with_adapter, select_comparable, write_adapter
from training.export.consolidate import DEFAULT_SHARD_BYTES, write_model
from training.export.model_settings import check_settings
from training.export.plan import ConsolidationError
from training.export.verification import Verification, check_model, reject_model
from training.export.zero_shards import StoredTensor, StoredWeights
from training.model import find_trained_dtype
from training.settings.adapter_settings import AdapterSettings
from training.spec import TrainingSpec
from training.task import Objective

_BASE_LAYER = ".base_layer."
"""In the name of a weight that an adapter is added to."""


def export_merged(
    checkpoint: Path,
    spec: TrainingSpec,
    settings: AdapterSettings,
    output: Path,
    *,
    dtype: torch.dtype,
    objective: Objective,
    add_files: Callable[[Path], None] | None = None,
) -> Verification:
    """Write the base model with the adapter of a checkpoint merged into its weights, in `dtype`.

    Needs the memory of the base model in fp32. Otherwise as `export_adapter`.
    """
    if output.exists():
        raise ConsolidationError(f"{str(output)!r} already exists; it was not changed")
    probe = read_probe(checkpoint)
    with build_in_scratch(output.parent, f".{output.name}.building-") as building:
        with build_in_scratch(output.parent, f".{output.name}.adapter-") as adapter:
            learned = write_adapter(
                checkpoint, spec, settings, adapter, probe, objective, torch.float32
            )
            model = load_with_adapter(adapter, spec, objective, torch.float32).merge_and_unload()
        merged = probe and replace(probe, zero_parameters=_rename_zeros(probe))
        hashes, values = write_model(
            list_weights(model),
            spec.base_model,
            building,
            merged,
            objective,
            dtype=dtype,
            template_arguments=spec.template_arguments,
            shard_bytes=DEFAULT_SHARD_BYTES,
        )
        del model
        if add_files:
            add_files(building)
        # The sum of both weights is rounded, which the training did not do: in fp32, by too little
        # to see.
        is_exact = dtype == find_trained_dtype(spec) == torch.float32
        trained_in = torch.float32 if is_exact else None
        comparable = select_comparable(spec, probe)
        loaded = check_model(building, comparable, trained_in, objective.task.model_class)
        verification = Verification(checks=(learned, values, check_settings(building), *loaded))
        verification.write(building)
        if not verification.passed:
            raise reject_model(building, output, verification)
        durable.publish_directory(building, output, known=hashes)
    return verification


def _rename_zeros(probe: Probe) -> frozenset[str]:
    """Return the weights that were all zero in training, by their names without the adapter."""
    return frozenset(name.replace(_BASE_LAYER, ".") for name in probe.zero_parameters)


def list_weights(model: Any) -> StoredWeights:
    """Return a model's weights and buffers; a shared one is listed once, with its other names."""
    buffers = {name for name, _ in model.named_buffers()}
    tensors: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and first.setdefault(place, name) != name:
            aliases[name] = first[place]
        else:
            pieces = (tensor.contiguous().flatten(),)
            tensors[name] = StoredTensor(tensor.shape, pieces, is_buffer=name in buffers)
    return StoredWeights(tensors, aliases)
