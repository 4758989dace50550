"""Compares the weights of a model directory with its architecture, without reading a value.

transformers loads the names and shapes of the safetensors headers into a model on the `meta`
device, by the same code that loads the values later: tied weights and fused experts are converted
alike. No code of the model's own runs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import str_to_torch_dtype

from model_files.weight_headers import TensorHeader


def make_meta_tensors(headers: Mapping[str, TensorHeader]) -> dict[str, torch.Tensor]:
    """Make a tensor on `meta` of each header; no file is mapped, which may be larger than memory.

    Raises `ValueError` for a type that transformers does not load.
    """
    tensors = {}
    for name, header in headers.items():
        if (dtype := str_to_torch_dtype.get(header.dtype)) is None:
            known = ", ".join(sorted(str_to_torch_dtype))
            raise ValueError(f"{name!r} has values of type {header.dtype}, expected one of {known}")
        tensors[name] = torch.empty(header.shape, dtype=dtype, device="meta")
    return tensors


def load_on_meta(config: Any, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, dict[str, Any]]:
    """Load tensors on `meta` into the causal language model that a configuration describes.

    Returns the model and transformers' report of what does not fit: `missing_keys`,
    `unexpected_keys` and `mismatched_keys`. Raises whatever transformers raises for a configuration
    that makes no model.
    """
    with torch.device("meta"):
        architecture: Any = type(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    model, report = architecture.from_pretrained(
        None,
        config=config,
        state_dict=dict(tensors),
        dtype="auto",
        device_map="meta",
        ignore_mismatched_sizes=True,  # they are reported by name instead
        output_loading_info=True,
    )
    return model, report
