"""Reading of the JSON files of a model directory, with a size limit."""

import json
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 16 << 20


def read_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a file that contains one JSON object.

    Raises `ValueError` for a file that is larger than `max_bytes`, is not valid JSON or is not an
    object, and `OSError` if it cannot be read.
    """
    size_bytes = path.stat().st_size
    if size_bytes > max_bytes:  # the parsed value needs about ten times as much memory
        raise ValueError(
            f"{path.name} has {size_bytes:,} bytes; expected at most {max_bytes:,} in such a file"
        )
    try:
        value = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"{path.name} is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a {type(value).__name__}; expected an object")
    return value


def find_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """Read a file as `read_object` does; return None if the file does not exist."""
    return read_object(path, max_bytes) if path.is_file() else None
