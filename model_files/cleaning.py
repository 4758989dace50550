"""Rewriting of the JSON files of an imported model, so that they are safe for other programs.

Tuneserve itself reads such files with `model_files.loading`. vLLM, and users who download the
model, pass the directory to transformers.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_files.config_settings import clean_config, clean_generation_config
from model_files.json_files import find_object
from model_files.tokenizer_settings import (
    MAX_TOKEN_CHARACTERS,
    SETTINGS_NAME,
    SPECIAL_TOKENS_NAME,
    clean_special_tokens,
    clean_tokenizer_settings,
)
from storage import durable

logger = logging.getLogger(__name__)

# Settings of image and audio processors, which language models do not use here; they can name
# other models.
_REMOVED = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)


def clean_directory(directory: Path, *, keeps: str = "") -> None:
    """Reduce the settings in a model directory to those known to be harmless.

    A file with only such settings is not modified. Files of processors are removed, except the one
    that `keeps` names, which is cleaned. Raises `ValueError` for a file that is too
    large, is not a JSON object or has a value of the wrong type, and `OSError`.
    """
    cleaners = {**_CLEANERS, **dict.fromkeys({keeps} & set(_REMOVED), clean_config)}
    for name, clean in cleaners.items():
        settings = find_object(directory / name)
        if settings is not None and (cleaned := clean(settings)) != settings:
            left_out = sorted(settings.keys() - cleaned.keys())
            logger.info("%s: rewritten; keys left out: %s", name, ", ".join(left_out)[:500])
            durable.write_json(directory / name, cleaned)
    for name in _REMOVED:
        if name != keeps:
            (directory / name).unlink(missing_ok=True)


def _clean_added_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        token: token_id
        for token, token_id in settings.items()
        if type(token_id) is int and len(token) <= MAX_TOKEN_CHARACTERS
    }


_CLEANERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "config.json": clean_config,
    "generation_config.json": clean_generation_config,
    SETTINGS_NAME: clean_tokenizer_settings,
    SPECIAL_TOKENS_NAME: clean_special_tokens,
    "added_tokens.json": _clean_added_tokens,
}
