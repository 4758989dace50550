"""Configuration and tokenizer of an exported model: adapted to its weights, and verified."""

import json
from pathlib import Path

from transformers import PreTrainedConfig

from model_files import loading
from model_files.end_ids import read_ids
from model_files.refused_keys import check_keys
from model_files.weight_headers import read_weight_headers
from training.export.verification import Check

# Settings that describe the base model's own weights and files, not the exported ones.
_STALE = ("quantization_config", "compression_config", "auto_map")
_DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def remove_stale_settings(config: PreTrainedConfig) -> None:
    """Remove a base model's settings for weights and files that the exported model does not have.

    A quantisation configuration makes dense weights unloadable, and `auto_map` refers to code.
    """
    for settings in (config, *_list_parts(config)):
        for name in _STALE:
            if hasattr(settings, name):
                delattr(settings, name)


def check_settings(directory: Path) -> Check:
    """Load configuration and tokenizer as serving does, and compare them with the weights."""
    try:
        faults = _find_faults(directory)
    except (ValueError, OSError) as exc:
        faults = [str(exc).replace(str(directory), directory.name)]
    detail = "; ".join(faults) or "configuration and tokenizer load, and fit the weights"
    return Check(name="settings", passed=not faults, detail=detail)


def _find_faults(directory: Path) -> list[str]:
    check_keys(directory)
    written = json.loads((directory / loading.CONFIG_NAME).read_text())
    faults = [f"config.json has {name!r}" for name in _STALE if written.get(name)]
    config = loading.load_config(directory)
    generation = loading.load_generation_config(directory)
    dtypes = _find_dtypes(directory)
    if str(config.dtype).removeprefix("torch.") not in dtypes:
        faults.append(f"config.json has dtype {config.dtype}, the weights {', '.join(dtypes)}")
    size = getattr(config.get_text_config(), "vocab_size", None)
    if size is None:  # a model of images alone
        return faults
    loading.load_tokenizer(directory)
    ends = read_ids(generation.eos_token_id)
    if outside := [token for token in ends if not 0 <= token < size]:
        faults.append(f"generation_config.json ends at the tokens {outside}, the model has {size}")
    return faults


def _find_dtypes(directory: Path) -> list[str]:
    """List the floating-point dtypes of a model's weights, as its configuration names them."""
    found = {header.dtype for header in read_weight_headers(directory).values()}
    return sorted(_DTYPE_NAMES[name] for name in found if name in _DTYPE_NAMES)


def _list_parts(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """List the configurations nested in a configuration, such as that of the text model."""
    return [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
