"""The weights of an adapter in PEFT's layout, as factors of the layers that they are added to."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from model_files.json_files import read_object
from model_files.weight_headers import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_TENSOR,
    ADAPTER_WEIGHTS_NAME,
)
from serving.errors import EngineDeadError


class LayerFactors(NamedTuple):
    """What an adapter adds to one linear layer W: `scale` B A x, and the row lengths of DoRA."""

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [out, r]
    scale: float
    magnitude: torch.Tensor | None  # [out]


def read_adapter(directory: Path) -> dict[str, LayerFactors]:
    """Read an adapter's factors by the names of the layers in the model.

    The scale of a layer is alpha / r, or alpha / sqrt(r) with rsLoRA (arXiv 2312.03732), with the
    layer's own alpha where the configuration has one. Raises `EngineDeadError` for files that
    cannot be read or are not those of a LoRA adapter of linear layers.
    """
    try:
        config = read_object(directory / ADAPTER_CONFIG_NAME)
        tensors = load_file(directory / ADAPTER_WEIGHTS_NAME)
        return _arrange(config, tensors)
    except (OSError, ValueError, LookupError, TypeError, re.error, SafetensorError) as exc:
        reason = str(exc).replace(str(directory), directory.name)
        raise EngineDeadError(f"adapter {directory.name!r} cannot be loaded: {reason}") from exc


def _arrange(
    config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, LayerFactors]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        matched = ADAPTER_TENSOR.fullmatch(name)
        if matched is None:
            raise ValueError(f"its tensor {name!r} is not a factor of a linear layer")
        part = matched["part"].removesuffix(".weight")
        found.setdefault(matched["module"], {})[part] = tensor
    factors = {}
    for layer, parts in found.items():
        if not {"lora_A", "lora_B"} <= parts.keys():
            raise ValueError(f"layer {layer!r} has only {', '.join(sorted(parts))}")
        a, b = parts["lora_A"], parts["lora_B"]
        if a.ndim != 2 or b.ndim != 2 or a.size(0) != b.size(1):
            raise ValueError(
                f"the factors of layer {layer!r} have shapes {list(a.shape)} and {list(b.shape)}"
            )
        scale = _find_scale(config, layer, a.size(0))
        factors[layer] = LayerFactors(a, b, scale, parts.get("lora_magnitude_vector"))
    if not factors:
        raise ValueError("it has no tensors")
    return factors


def _find_scale(config: Mapping[str, Any], layer: str, rank: int) -> float:
    patterns = config.get("alpha_pattern") or {}
    keys = (key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", layer))
    key = next(keys, None)
    alpha = float(config["lora_alpha"] if key is None else patterns[key])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
