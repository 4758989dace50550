"""Comparison of a model directory's weights with its architecture, without reading weight values.

transformers loads the names and shapes of the safetensors headers into a model on the `meta`
device with the code that loads the values later: tied weights and fused experts are converted in
the same way. No code of the model runs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.modeling_utils import str_to_torch_dtype
from transformers.utils import logging as transformers_logging

from model_files.weight_headers import TensorHeader


def make_meta_tensors(headers: Mapping[str, TensorHeader]) -> dict[str, torch.Tensor]:
    """Return a `meta` tensor for each header; maps no file, since files may exceed the memory.

    Raises `ValueError` for a dtype that transformers does not load.
    """
    tensors = {}
    for name, header in headers.items():
        if (dtype := str_to_torch_dtype.get(header.dtype)) is None:
            known = ", ".join(sorted(str_to_torch_dtype))
            raise ValueError(f"{name!r} has values of type {header.dtype}, expected one of {known}")
        tensors[name] = torch.empty(header.shape, dtype=dtype, device="meta")
    return tensors


def load_on_meta(
    config: Any,
    tensors: Mapping[str, torch.Tensor],
    model_class: str = "AutoModelForCausalLM",
) -> tuple[Any, dict[str, Any]]:
    """Load tensors on `meta` into the model of a class that a configuration describes.

    Returns the model and transformers' report of mismatches: `missing_keys`, `unexpected_keys` and
    `mismatched_keys`. Raises any error of transformers for an invalid configuration.
    """
    with torch.device("meta"):
        auto_class = getattr(transformers, model_class)
        architecture: Any = type(auto_class.from_config(config, trust_remote_code=False))
    with hide_load_report():
        model, report = architecture.from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype="auto",
            device_map="meta",
            ignore_mismatched_sizes=True,  # the report names them
            output_loading_info=True,
        )
    return model, report


@contextmanager
def hide_load_report() -> Iterator[None]:
    """Let transformers log no table of weights that do not match: the caller examines them."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
