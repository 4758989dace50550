"""Rejection of keys and files that would make transformers open other files or run code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_files.json_files import find_object
from model_files.weight_headers import ADAPTER_CONFIG_NAME

# In addition to `*_file`. A string in `vocab` or `merges` is opened as a file; non-strings are the
# vocabulary itself.
_FILE_KEYS = frozenset(
    {
        "vocab",
        "merges",
        "init_inputs",
        "tokenizer_object",
        "fast_tokenizer_files",
        "configuration_files",
        "transformers_weights",
    }
)
# transformers itself wrote the paths of these files when it saved a tokenizer; they are ignored.
_LEFTOVERS = frozenset(
    {
        "tokenizer_file",
        "added_tokens_file",
        "special_tokens_map_file",
        "tokenizer_config_file",
        "chat_template_file",
    }
)
_FILES = ("special_tokens_map.json", "added_tokens.json")
_SHARD_NAME = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors")


def check_weight_files(directory: Path) -> None:
    """Check that transformers would load no other weights than those of the model itself.

    Raises `ValueError` that names the file.
    """
    for path in sorted(directory.iterdir()):
        if path.name == ADAPTER_CONFIG_NAME or _SHARD_NAME.fullmatch(path.name):
            raise ValueError(
                f"{path.name} would have other weights loaded than those of model.safetensors and "
                "its index; merge an adapter into its model, or consolidate the shards, and "
                "remove the file"
            )


def check_keys(directory: Path) -> None:
    """Check that no JSON settings file names a file to open or code to run.

    Raises `ValueError` that names the file, the key and the value.
    """
    names = [path.name for path in sorted(directory.glob("*config.json"))]
    for name in [*names, *_FILES]:
        settings = find_object(directory / name)
        for key, value in _walk(settings or {}):
            _check_key(name, key, value)


def _check_key(name: str, key: str, value: Any) -> None:
    if key == "auto_map":
        raise ValueError(
            f"{name} asks for code of the model's own ('auto_map'), which is never run; use a "
            "model that transformers itself supports"
        )
    is_file = key in _FILE_KEYS or (key.endswith("_file") and key not in _LEFTOVERS)
    if is_file and value:
        raise ValueError(
            f"{name}: {key!r} is {str(value)[:80]!r}, which transformers may open as a file; "
            "expected no such key: tokenizer.json and the files of weights hold all that is needed"
        )


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value of an object and of all nested objects."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield from value.items()
            pending += value.values()
        elif isinstance(value, list):
            pending += value
