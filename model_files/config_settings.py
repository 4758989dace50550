"""The settings of `config.json` and `generation_config.json` that are passed to transformers.

Every architecture has its own keys, so `config.json` has no list of allowed keys. Instead, values
that could be a path or a location on the hub are dropped, and so are keys through which
transformers selects files, code or the implementation of attention.
"""

import re
from collections.abc import Mapping
from typing import Any

_KEY = re.compile(r"[A-Za-z0-9][\w.:*-]{0,127}")
_MAX_TEXT_CHARACTERS = 4_096
_MAX_DEPTH = 16
# transformers sets unknown keys as attributes of its configuration. Dropped are names of files and
# code, attribute aliases, implementations, some of which are downloaded, and labels and texts that
# text generation does not use; a classifier's labels are kept.
_DROPPED = frozenset(
    {
        "name_or_path",
        "auto_map",
        "custom_pipelines",
        "configuration_files",
        "transformers_weights",
        "gguf_file",
        "attribute_map",
        "sub_configs_defaults",
        "extra_files",
        "extra_config_files",
        "attn_implementation",
        "experts_implementation",
        "fusion_config",
        "id2label",
        "label2id",
        "task_specific_params",
    }
)
_LABEL_ID = re.compile(r"[0-9]{1,5}")
_MAX_LABEL_CHARACTERS = 200
_INFINITE = {"__float__": frozenset({"NaN", "Infinity", "-Infinity"})}  # transformers' spelling

_GENERATION_NUMBERS = frozenset(
    {
        "begin_suppress_tokens",
        "bos_token_id",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "eos_token_id",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "guidance_scale",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "min_p",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "pad_token_id",
        "penalty_alpha",
        "remove_invalid_values",
        "renormalize_logits",
        "repetition_penalty",
        "suppress_tokens",
        "temperature",
        "top_h",
        "top_k",
        "top_p",
        "typical_p",
        "use_cache",
    }
)


def clean_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parsed `config.json`, or an object in it, without values that could name a file.

    Raises `ValueError` if it is nested too deep.
    """
    cleaned = _clean_object(config, 0)
    if _is_classifier(config):
        labels = _clean_labels(config.get("id2label"))
        if labels:  # their number is that of the model's outputs
            cleaned["id2label"] = labels
            cleaned["label2id"] = {label: int(number) for number, label in labels.items()}
    return cleaned


def clean_generation_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known numeric settings of a parsed `generation_config.json`, and its version."""
    cleaned = {
        key: value
        for key, value in settings.items()
        if key in _GENERATION_NUMBERS and _is_numeric(value)
    }
    version = settings.get("transformers_version")
    if isinstance(version, str) and _is_inert(version):
        cleaned["transformers_version"] = version
    return cleaned


def _is_classifier(config: Mapping[str, Any]) -> bool:
    named = config.get("architectures")
    return isinstance(named, list) and bool(named) and str(named[0]).endswith("Classification")


def _clean_labels(labels: Any) -> dict[str, str]:
    """Return the names of classes by their numbers; empty if they are not such a mapping."""
    if not isinstance(labels, Mapping):
        return {}
    named = {str(number): str(label) for number, label in labels.items()}
    is_valid = all(
        _LABEL_ID.fullmatch(number) and len(label) <= _MAX_LABEL_CHARACTERS
        for number, label in named.items()
    )
    return named if is_valid else {}


def _clean_object(value: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"config.json is nested more than {_MAX_DEPTH} levels deep")
    cleaned = {}
    for key, item in value.items():
        if key in _DROPPED or not _KEY.fullmatch(key):
            continue
        if (kept := _clean_value(item, depth)) is not None or item is None:
            cleaned[key] = kept
    return cleaned


def _clean_value(value: Any, depth: int) -> Any:
    """Return the harmless part of a value; None for a text that could be a path."""
    if isinstance(value, dict):
        ((tag, text), *more) = value.items() if value else [(None, None)]
        if not more and isinstance(text, str) and text in _INFINITE.get(str(tag), ()):
            return value
        return _clean_object(value, depth + 1)
    if isinstance(value, list):
        if depth > _MAX_DEPTH:
            raise ValueError(f"config.json is nested more than {_MAX_DEPTH} levels deep")
        cleaned = [_clean_value(item, depth + 1) for item in value]
        kept = zip(value, cleaned, strict=True)
        return [new for old, new in kept if new is not None or old is None]
    if isinstance(value, str):
        return value if _is_inert(value) else None
    return value


def _is_inert(text: str) -> bool:
    """Return whether a text can be neither a path out of a folder nor a location on the hub."""
    is_path = "/" in text or "\\" in text or text.startswith("~") or text in (".", "..")
    return not is_path and len(text) <= _MAX_TEXT_CHARACTERS


def _is_numeric(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(item is None or isinstance(item, int | float) for item in items)
