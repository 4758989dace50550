"""A training that continues an adapter in PEFT's layout: the check that it fits, and its values."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from model_files.weight_headers import ADAPTER_WEIGHTS_NAME, name_some, read_file_header
from training.adapters.names import name_in_file
from training.spec import SettingError

if TYPE_CHECKING:
    from peft import LoraConfig

# What PEFT records in a configuration and does not compute with, or training sets anew.
_IRRELEVANT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights"),
        *("lora_dropout", "peft_version", "revision", "runtime_config", "task_type"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    }
)
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")


def check_continued(
    folder: Path, planned: "LoraConfig", shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that a training's adapter is the one in `folder`: its settings and its tensors.

    `shapes` are those of the tensors that will be learned, by their names in PEFT's files. Reads
    no weight. Raises `SettingError`.
    """
    from peft import LoraConfig

    found = LoraConfig.from_pretrained(str(folder)).to_dict()
    for name, value in planned.to_dict().items():
        if name not in _IRRELEVANT and (found.get(name) or None) != (value or None):
            raise SettingError(
                f"base_adapter {folder.name!r} cannot be continued: its setting {name!r} is "
                f"{_show(found.get(name))}, expected {_show(value)}; merge it with its "
                "base model, and start from the result"
            )
    if (start := found.get("init_lora_weights")) not in _PLAIN_STARTS:
        raise SettingError(
            f"base_adapter {folder.name!r} cannot be continued: PEFT started it by {start!r}, "
            "which changes the base model; convert it as PEFT documents "
            "(path_initial_model_for_weight_conversion)"
        )
    try:
        header = read_file_header(folder / ADAPTER_WEIGHTS_NAME)
    except ValueError as exc:
        raise SettingError(f"base_adapter {folder.name!r} cannot be read: {exc}") from exc
    stored = {_name(name): one.shape for name, one in header.items()}
    faults = {
        "missing": shapes.keys() - stored.keys(),
        "not layers of the base model that an adapter is learned for": stored.keys()
        - shapes.keys(),
        "of another shape": {
            name for name in shapes.keys() & stored.keys() if shapes[name] != stored[name]
        },
    }
    for words, names in faults.items():
        if names:
            raise SettingError(
                f"base_adapter {folder.name!r} does not fit the base model: {words}: "
                f"{name_some(sorted(names))}; set base_model to the model that it was trained on"
            )


def load_values(model: torch.nn.Module, folder: Path) -> None:
    """Copy the values of the adapter in `folder` into the learned parameters of `model`.

    `check_continued` must have passed. Raises `SafetensorError` for a file that has been damaged
    since.
    """
    from safetensors.torch import load_file

    stored = load_file(folder / ADAPTER_WEIGHTS_NAME)
    tensors = {_name(name): tensor for name, tensor in stored.items()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.copy_(tensors[name_in_file(name)])


def _show(value: object) -> str:
    return repr(value)[:80]


def _name(stored: str) -> str:
    """Return the present name of a tensor: early versions of PEFT had another for DoRA's."""
    is_vector = "lora_magnitude_vector" in stored
    return stored.removesuffix(".weight") if is_vector else stored
