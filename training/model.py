"""Strict loading of the model to train, and the layout of its batches."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from model_files.architecture import hide_load_report, load_on_meta, make_meta_tensors
from model_files.trainable import drop_head, is_of_base
from model_files.weight_headers import read_weight_headers
from training.adapters.layers import add_adapter
from training.adapters.quantization import build_quantization
from training.batching import BatchLayout
from training.spec import TrainingSpec
from training.task import Objective, find_task

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

_UNKNOWN_WIDTH = 1024  # of the few vision models that name no width
_UNFIT_PREFIX = "unfit_head."
WEIGHT_FILES = ["config.json", "*.safetensors", "*.safetensors.index.json"]
_CPU = torch.device("cpu")
_FLATTENED_ARCHITECTURES = frozenset(
    {"gemma", "gemma2", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}
)
_DENSE_ON_CPU = frozenset({"gemma2"})  # has no `sdpa` attention
# The mask of concatenated rows on a CPU takes the square of their tokens in bytes, and three times
# as much while it is made.
_MAX_MASKED_TOKENS = 8192
# Positions whose encoding depends on the longest row of a batch.
_BATCH_DEPENDENT_POSITIONS = frozenset({"longrope", "dynamic"})


def find_trained_dtype(spec: TrainingSpec) -> torch.dtype:
    """Return the dtype of a model's weights in training; ddp rounds them for each product only."""
    return torch.float32 if spec.strategy == "ddp" else DTYPES[spec.precision]


class WeightsError(RuntimeError):
    """The weights in the base model's files differ from those of its architecture."""


def load_model(
    spec: TrainingSpec,
    objective: Objective,
    layout: BatchLayout = "padded",
    device: torch.device = _CPU,
    unfit_head: Sequence[str] = (),
    *,
    dtype: torch.dtype | None = None,
    is_resumed: bool = False,
) -> torch.nn.Module:
    """Load the base model; raises `WeightsError` unless its weights match its architecture.

    The weights of a head that the base model lacks are random, by the seed of the spec, and so are
    those of `unfit_head`. All have `dtype`, by default that of the spec's precision. With an
    adapter in the spec, only the adapter's parameters require gradients; `is_resumed` tells whether
    a checkpoint is loaded next. Raises `UnknownModelError` if there is no such model, and
    `SettingError` for an adapter that does not fit it.
    """
    import transformers

    from training.base_model import load_config, load_generation_config

    task = objective.task
    config = load_config(spec.base_model)
    objective.adapt_config(config)
    generation: dict[str, Any] = {}
    if task.generates:
        generation["generation_config"] = load_generation_config(spec.base_model)

    attention = {}
    if layout != "padded" and _has_varlen_kernel(spec, device):
        attention["attn_implementation"] = "flash_attention_2"
    quantization = {}
    if spec.quantization != "none":
        quantization = build_quantization(spec.quantization, device, DTYPES[spec.precision])
    torch.manual_seed(spec.seed)
    with hide_load_report():
        model, info = getattr(transformers, task.model_class).from_pretrained(
            spec.base_model,
            config=config,
            dtype=dtype or DTYPES[spec.precision],
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **attention,
            **generation,
            **quantization,
            **({"ignore_mismatched_sizes": True} if task.adds_head else {}),
            **({"key_mapping": _rename_weights(unfit_head)} if unfit_head else {}),
        )
    if task.adds_head:
        info = drop_head(info, model.base_model_prefix)
    if faults := find_weight_faults(info):
        raise WeightsError(describe_faults(spec, faults))
    model.config.use_cache = False
    if spec.adapter is not None:
        add_adapter(
            model,
            spec.adapter,
            has_new_head=task.adds_head,
            seed=spec.seed,
            device=device,
            start=Path(spec.base_adapter) if spec.base_adapter else None,
            is_resumed=is_resumed,
        )
    if spec.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model  # type: ignore[no-any-return]


def find_unfit_head(spec: TrainingSpec, objective: Objective) -> list[str]:
    """Return the weights of a base model's head that have another shape than the task's.

    Loading sharded weights at ZeRO stage 3 fails for them, also with `ignore_mismatched_sizes`.
    Must be called before transformers is set up for sharded loading. Raises `UnknownModelError`.
    """
    from huggingface_hub import snapshot_download

    from training.base_model import load_config

    if not objective.task.adds_head:
        return []
    config = load_config(spec.base_model)
    objective.adapt_config(config)
    folder = Path(spec.base_model)
    if not folder.is_dir():
        folder = Path(snapshot_download(spec.base_model, allow_patterns=WEIGHT_FILES))
    tensors = make_meta_tensors(read_weight_headers(folder))
    model, report = load_on_meta(config, tensors, objective.task.model_class)
    names = [str(found[0]) for found in report["mismatched_keys"]]
    return [name for name in names if not is_of_base(name, model.base_model_prefix)]


def _rename_weights(names: Sequence[str]) -> dict[str, str]:
    """Return patterns of names in files, with names that no architecture has."""
    return {f"^{re.escape(name)}$": f"{_UNFIT_PREFIX}{name}" for name in names}


def find_hidden_size(base_model: str) -> int:
    """Return the width of a model's hidden states: of stages of several widths, the largest."""
    from training.base_model import load_config

    config = load_config(base_model).get_text_config()
    widths = getattr(config, "hidden_size", None) or getattr(config, "hidden_sizes", None)
    return int(max(widths) if isinstance(widths, list | tuple) else widths or _UNKNOWN_WIDTH)


def cast_inputs(inputs: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Convert floating-point inputs, such as pixels, to the dtype of a model's weights."""
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def freeze_statistics(model: torch.nn.Module) -> None:
    """Let batch normalisation use the base model's statistics, also in training.

    Otherwise the loss of a row would depend on the other rows of its micro batch, and the
    statistics on the rows of one worker.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.eval()


def find_weight_faults(loading_info: Any) -> dict[str, list[str]]:
    """Return the non-empty lists of transformers' loading report; empty if every weight fits."""
    return {kind: sorted(str(key) for key in keys) for kind, keys in loading_info.items() if keys}


def describe_faults(spec: TrainingSpec, faults: Mapping[str, Sequence[str]]) -> str:
    """Describe what `find_weight_faults` found in the base model of a spec."""
    return (
        f"the weights of {Path(spec.base_model).name!r} do not fit its architecture: {faults}; "
        "training would start from random values in their place"
    )


def choose_layout(spec: TrainingSpec, device: torch.device) -> BatchLayout:
    """Resolve 'auto': packed rows where attention computes rows separately, else padded rows.

    Dense attention over concatenated rows computes every row against every other. Rows are
    concatenated only for architectures known to carry no other state from row to row, such as that
    of a convolution, and where the positions of a row do not depend on the others.
    """
    from training.base_model import load_config

    if not find_task(spec.task).learns_tokens:
        return "padded"
    if spec.batch_layout != "auto":
        return "packed" if spec.batch_layout == "flattened" else "padded"
    if spec.strategy == "pipeline":  # its stages exchange nothing but hidden states
        return "padded"
    config = load_config(spec.base_model)
    if device.type == "cpu":
        separates_rows = config.model_type not in _DENSE_ON_CPU
        separates_rows &= spec.micro_batch_tokens <= _MAX_MASKED_TOKENS
    else:
        separates_rows = _has_varlen_kernel(spec, device)
    positions = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    is_known = config.model_type in _FLATTENED_ARCHITECTURES
    is_known &= positions not in _BATCH_DEPENDENT_POSITIONS
    return "packed" if is_known and separates_rows else "padded"


def _has_varlen_kernel(spec: TrainingSpec, device: torch.device) -> bool:
    """Return whether a variable-length attention kernel exists: on a GPU, in half precision."""
    from transformers.utils import is_flash_attn_2_available

    is_half = spec.precision in ("bf16", "fp16")
    return device.type == "cuda" and is_half and bool(is_flash_attn_2_available())
