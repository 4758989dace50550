"""The check that serving can adapt the layers that an adapter changes, with its values."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.pytorch_utils import Conv1D

from model_files.architecture import load_on_meta, make_meta_tensors
from model_files.loading import load_config
from model_files.weight_headers import ADAPTER_WEIGHTS_NAME, name_some, read_weight_headers
from serving.loading.config_sizes import check_config_sizes
from serving.served_task import DEFAULT_TASK, find_served_task


def check_adapted_layers(base: Path, layers: Iterable[str]) -> None:
    """Check that each layer is a linear layer of the model in `base` as it is in memory.

    Names of tensors in files may differ from those in memory: transformers merges the experts of a
    layer, and adds the prefix of the base model. Raises `ValueError`.
    """
    check_config_sizes(json.loads((base / "config.json").read_bytes()))
    tensors = make_meta_tensors(read_weight_headers(base))
    model_class = find_served_task(DEFAULT_TASK).model_class
    model, _ = load_on_meta(load_config(base), tensors, model_class)
    linear = {
        name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear | Conv1D)
    }
    refused = [
        name
        for name in sorted(layers)
        if name not in linear or any(part.startswith("expert") for part in name.split("."))
    ]
    if refused:
        raise ValueError(
            f"the adapter changes {name_some(refused)}, which are no linear layers of base model "
            f"{base.name!r} when it is loaded, or experts, and is not served: merge it with its "
            "base model (PEFT's merge_and_unload) and add the result as a complete model"
        )


def check_finite_values(adapter: Path) -> None:
    """Raise `ValueError` for a value of an adapter that is not finite: it would spread."""
    with safe_open(adapter / ADAPTER_WEIGHTS_NAME, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            if not bool(torch.isfinite(file.get_tensor(name)).all()):
                raise ValueError(
                    f"tensor {name!r} of {ADAPTER_WEIGHTS_NAME} has a value that is not finite, "
                    "expected numbers; train the adapter again"
                )
