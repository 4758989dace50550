"""The files of a repository on the hub that make a model: no pickled weights, and no code."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import NamedTuple

from model_files.weight_headers import ADAPTER_CONFIG_NAME, name_some

HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "README.md"]
"""The files of a model; pickled weights and code are not downloaded."""
MAX_FILES = 2_000
_POOLING_FILE = "1_Pooling/config.json"  # of a model of sentence-transformers
_DENSE_FILE = "2_Dense/config.json"  # whose models are refused once the file is there
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)
_WEIGHTS_ENDING = ".safetensors"
_PICKLE_ENDINGS = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})


class HubFile(NamedTuple):
    """A file of a repository as the hub lists it; `sha256` is that of a large file, if known."""

    name: str
    size_bytes: int
    sha256: str | None = None


class RefusedFilesError(ValueError):
    """The files of a repository are not those of a model that can be installed."""


def choose_files(hub_id: str, listed: Iterable[HubFile]) -> list[HubFile]:
    """Return the files of a repository that make its model.

    Of the weights, those that transformers loads are chosen where a repository has several kinds.
    Raises `RefusedFilesError` for a repository without configuration or safetensors weights.
    """
    files = list(listed)
    chosen = [file for file in files if _is_of_model(file.name)]
    weights = [file for file in chosen if file.name.endswith(_WEIGHTS_ENDING)]
    loaded = [file for file in weights if file.name.startswith(("model", "adapter_model"))]
    if not {"config.json", ADAPTER_CONFIG_NAME} & {file.name for file in chosen}:
        raise RefusedFilesError(
            f"{hub_id!r} is no model that can be installed: it has no config.json and no "
            f"{ADAPTER_CONFIG_NAME}"
        )
    if not weights:
        pickled = [one.name for one in files if PurePosixPath(one.name).suffix in _PICKLE_ENDINGS]
        found = f", only pickled ones: {name_some(pickled)}" if pickled else ""
        raise RefusedFilesError(
            f"{hub_id!r} has no weights in safetensors{found}; expected *.safetensors: pickled "
            "weights may run code when they are loaded, and are never downloaded"
        )
    if loaded:
        chosen = [file for file in chosen if file not in weights or file in loaded]
    if len(chosen) > MAX_FILES:
        raise RefusedFilesError(f"{hub_id!r} has more than {MAX_FILES:,} files")
    return chosen


def _is_of_model(name: str) -> bool:
    """Return whether a file is one of a model; files in folders are not, except for two."""
    if name in (_POOLING_FILE, _DENSE_FILE):
        return True
    is_plain = _NAME.fullmatch(name) is not None
    return is_plain and any(fnmatchcase(name, pattern) for pattern in HUB_PATTERNS)
