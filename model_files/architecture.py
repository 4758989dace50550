"""Compares the weights of a model directory with its architecture, without reading a value.

transformers loads the names and shapes of the safetensors headers into a model on the `meta`
device, by the same code that loads the values later: tied weights and fused experts are converted
alike. No code of the model's own runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import load_state_dict

from model_files.json_files import read_object
from model_files.weight_headers import INDEX_NAME, WEIGHTS_NAME


def read_meta_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Return a tensor on `meta` for each tensor of the files that transformers would load."""
    if (directory / WEIGHTS_NAME).is_file():
        files = [WEIGHTS_NAME]
    else:
        index = read_object(directory / INDEX_NAME, max_bytes=1 << 40)
        files = sorted(set(index["weight_map"].values()))
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors.update(load_state_dict(str(directory / file), map_location="meta"))
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
