"""Export of a checkpoint's adapter as a verified directory in PEFT's own layout.

Beside `adapter_config.json` and `adapter_model.safetensors`, which are PEFT's, the directory has
the tokenizer and the settings of generation. It has no `config.json`, by which transformers would
take it for a complete model.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from model_files.weight_headers import ADAPTER_WEIGHTS_NAME
from storage import durable
from storage.scratch import build_in_scratch
from training.adapters.initial import append_initial
from training.adapters.layers import plan_adapter
from training.adapters.names import name_in_file
from training.checkpoint.format import find_shards
from training.checkpoint.reference_logits import Probe, read_probe
from training.export.companions import open_config, save_inputs
from training.export.plan import ConsolidationError, build_meta_model
from training.export.verification import (
    Check,
    Verification,
    check_logits,
    check_values,
    reject_model,
)
from training.export.zero_shards import StoredTensor, open_weights
from training.model import find_trained_dtype, load_model
from training.settings.adapter_settings import AdapterSettings
from training.spec import TrainingSpec, name_source
from training.task import Objective


def export_adapter(
    checkpoint: Path,
    spec: TrainingSpec,
    settings: AdapterSettings,
    output: Path,
    *,
    dtype: torch.dtype,
    objective: Objective,
    add_files: Callable[[Path], None] | None = None,
) -> Verification:
    """Write the adapter of a checkpoint, and verify it on its base model.

    `settings` are those of the adapter in `spec`; its weights are written in `dtype`. `add_files`
    adds more files before the manifest is written. Raises `ShardsError`, `ConsolidationError` and
    `RejectedError` as `consolidate_checkpoint` does. `output` is published complete or not at all.
    """
    if output.exists():
        raise ConsolidationError(f"{str(output)!r} already exists; it was not changed")
    probe = read_probe(checkpoint)
    with build_in_scratch(output.parent, f".{output.name}.building-") as building:
        values = write_adapter(checkpoint, spec, settings, building, probe, objective, dtype)
        if add_files:
            add_files(building)
        verification = Verification(
            checks=(values, *_check_adapter(building, spec, dtype, objective, probe))
        )
        verification.write(building)
        if not verification.passed:
            raise reject_model(building, output, verification)
        durable.publish_directory(building, output)
    return verification


def write_adapter(
    checkpoint: Path,
    spec: TrainingSpec,
    settings: AdapterSettings,
    directory: Path,
    probe: Probe | None,
    objective: Objective,
    dtype: torch.dtype,
) -> Check:
    """Write the adapter of a checkpoint and its companions; returns the check of its values.

    Raises `ShardsError` and `ConsolidationError`.
    """
    _write_settings(spec, settings, directory, dtype, objective)
    return _write_weights(checkpoint, directory, dtype, probe)


def _write_settings(
    spec: TrainingSpec,
    settings: AdapterSettings,
    directory: Path,
    dtype: torch.dtype,
    objective: Objective,
) -> None:
    """Write PEFT's configuration of the adapter, as the training planned it, and the companions."""
    config = open_config(spec.base_model, dtype, objective)
    model = build_meta_model(config, dtype, objective.task.model_class)
    planned = plan_adapter(model, settings, has_new_head=objective.task.adds_head)
    if objective.task.generates:
        planned.task_type = "CAUSAL_LM"
    planned.base_model_name_or_path = name_source(spec.base_model)
    planned.inference_mode = True
    if settings.init != "default":  # twice the rank: see training.adapters.initial
        planned.r *= 2
        planned.lora_alpha *= 2**0.5 if planned.use_rslora else 2  # the same scale
    planned.save_pretrained(str(directory))
    save_inputs(spec.base_model, config, directory, objective, spec.template_arguments)


def _write_weights(
    checkpoint: Path, directory: Path, dtype: torch.dtype, probe: Probe | None
) -> Check:
    """Write the learned tensors under PEFT's names, and check their values."""
    stored = open_weights(find_shards(checkpoint), in_fp32=dtype == torch.float32).tensors
    learned = {name: one for name, one in stored.items() if not one.is_buffer}
    tensors = {name: _read(one, dtype) for name, one in learned.items()}
    if not tensors:
        raise ConsolidationError(f"the checkpoint {checkpoint.name!r} has no adapter")
    buffers = {name: _read(one, one.dtype) for name, one in stored.items() if one.is_buffer}
    save_file(
        {
            name_in_file(name): append_initial(name, tensor, buffers)
            for name, tensor in tensors.items()
        },
        directory / ADAPTER_WEIGHTS_NAME,
        metadata={"format": "pt"},
    )
    durable.fsync_file(directory / ADAPTER_WEIGHTS_NAME)
    not_finite = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    zeros = {name for name, tensor in tensors.items() if not tensor.any()}
    expected = probe.zero_parameters if probe else frozenset(zeros)
    return check_values(not_finite, sorted(zeros - expected), len(tensors))


def _read(stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.empty(stored.shape, dtype=dtype)
    stored.copy_into(tensor.view(-1))
    return tensor


def _is_finite(tensor: torch.Tensor) -> bool:
    return all(math.isfinite(float(value)) for value in torch.aminmax(tensor.float()))


def _check_adapter(
    directory: Path,
    spec: TrainingSpec,
    dtype: torch.dtype,
    objective: Objective,
    probe: Probe | None,
) -> list[Check]:
    """Load the adapter with PEFT on its base model, and compare its logits with the training's."""
    trained_in = find_trained_dtype(spec)
    try:
        model = load_with_adapter(directory, spec, objective, trained_in)
    except Exception as exc:  # noqa: BLE001 - every error belongs in the report
        reason = str(exc).replace(str(directory), directory.name)
        return [Check(name="loads", passed=False, detail=f"it does not load: {reason}")]
    loads = Check(name="loads", passed=True, detail="it loads on its base model")
    # In half precision, training rounds both products of such a start before it subtracts them.
    starts_large = spec.adapter is not None and spec.adapter.init != "default"
    is_rounded = dtype != trained_in or (starts_large and trained_in != torch.float32)
    comparable = select_comparable(spec, probe)
    return [loads, check_logits(model.eval(), comparable, is_rounded=is_rounded)]


def select_comparable(spec: TrainingSpec, probe: Probe | None) -> Probe | None:
    """Return the logits of the training, unless they are those of other, quantised base weights."""
    return probe if spec.quantization == "none" else None


def load_with_adapter(
    directory: Path, spec: TrainingSpec, objective: Objective, dtype: torch.dtype
) -> Any:
    """Load the base model of a spec in `dtype`, not quantised, with an adapter in PEFT's layout.

    Raises what transformers and PEFT raise for a file that does not fit.
    """
    from peft import PeftModel

    changes = {"adapter": None, "quantization": "none", "activation_checkpointing": False}
    plain = spec.model_copy(update=changes)
    return PeftModel.from_pretrained(load_model(plain, objective, dtype=dtype), str(directory))
