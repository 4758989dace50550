"""`/v1/models/{model_id}/card`: what the store knows about a model's content, and its README."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from fastapi import APIRouter

from apps.access.roles import Permission, requires
from apps.http_api.routes import ServicesOf
from model_files.json_files import find_object
from model_files.weight_headers import ADAPTER_CONFIG_NAME, read_file_header
from serving.store.stored_model import StoredModel
from storage.durable import DamagedDirectoryError
from storage.manifest import read_manifest
from storage.regular_file import open_regular
from storage.versioned_json import NewerFormatError
from system.utf8 import clean_text

router = APIRouter(prefix="/v1/models")

MAX_TEXT_BYTES = 100_000
_MAX_HEADER_BYTES = 8 << 20
_LENGTH_BYTES = 8
_README_NAME = "README.md"
_LICENSE = re.compile(
    r"""\A---[ \t]*\n(?:(?!---).*\n)*?license:[ \t]*["']?([^\s"'\[{]{1,100})["']?[ \t]*\n"""
)
"""The license in the front matter of a README of the Hugging Face Hub."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx")


class CardFile(TypedDict):
    """A file of a model as it was published."""

    name: str
    bytes: int
    sha256: str


@router.get("/{model_id}/card")
@requires(Permission.READ_MODELS)
def get_card(services: ServicesOf, model_id: str) -> Mapping[str, object]:
    """Show the README, files, size and architecture of a model; null for what is unknown."""
    model = services.models.resolve(model_id)
    files, fault = _list_files(model)
    text = _read_text(model)
    license_name = _LICENSE.match(text or "")
    return {
        "object": "model.card",
        "id": model.id,
        "text": text,
        "license": license_name[1] if license_name else None,
        "files": files,
        "fault": fault,
        **_describe_weights(model, files),
        **_describe_config(model),
    }


def _read_text(model: StoredModel) -> str | None:
    """Return the README, cut after `MAX_TEXT_BYTES`; None if there is none."""
    try:
        with open_regular(model.path / _README_NAME, follow_links=False) as file:
            return file.read(MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return None


def _list_files(model: StoredModel) -> tuple[list[CardFile], str | None]:
    """Return the files that the manifest lists, or why it cannot be read."""
    try:
        listed = read_manifest(model.path)
    except DamagedDirectoryError as exc:
        return [], str(exc)
    except NewerFormatError as exc:
        return [], f"the model needs a newer version of Tuneserve: {exc.reason}"
    return [
        {"name": name, "bytes": file.size_bytes, "sha256": file.sha256}
        for name, file in sorted(listed.items())
    ], None


def _describe_weights(model: StoredModel, files: Iterable[CardFile]) -> Mapping[str, object]:
    sizes: Counter[str] = Counter()
    names = [file["name"] for file in files if fnmatch(file["name"], "*.safetensors")]
    try:
        for name in names:
            path = model.path / name
            status = path.stat()
            sizes.update(_count_elements(path, status.st_mtime_ns, status.st_size))
    except (OSError, ValueError):  # damaged, which a verification reports, or too large
        sizes.clear()
    if not sizes:
        return {"num_parameters": None, "dtype": None}
    return {
        "num_parameters": sum(sizes.values()),
        "dtype": sizes.most_common(1)[0][0].lower(),
    }


@lru_cache(maxsize=4096)
def _count_elements(path: Path, _modified_ns: int, _num_bytes: int) -> Mapping[str, int]:
    """Count the elements in a file of weights by their dtype, once as long as it stays the same."""
    _check_header_size(path)
    sizes: Counter[str] = Counter()
    for header in read_file_header(path).values():
        sizes[header.dtype] += header.num_elements
    return sizes


def _check_header_size(path: Path) -> None:
    """Raise `ValueError` for a header that takes long to parse: other requests would wait."""
    with open_regular(path) as file:
        num_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if num_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"the header of {path.name} has {num_bytes:,} bytes")


def _describe_config(model: StoredModel) -> Mapping[str, object]:
    name = ADAPTER_CONFIG_NAME if model.is_adapter else "config.json"
    try:
        config = find_object(model.path / name) or {}
    except (OSError, ValueError):
        config = {}
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    lengths = (_find_int(config, key) for key in _CONTEXT_KEYS)
    return {
        "architecture": clean_text(first) if isinstance(first, str) else None,
        "context_length": next(filter(None, lengths), None),
        "rank": _find_int(config, "r") if model.is_adapter else None,
    }


def _find_int(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int else None
