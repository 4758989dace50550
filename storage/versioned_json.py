"""JSON objects with a format version, so that an upgrade can be rolled back.

The key `format_version` has the form 'MAJOR.MINOR'. An object without it was written by release
0.1, whose format is 1.0.

A minor version adds keys or values. An older reader ignores unknown keys; when it rewrites the
file, it keeps them and the newer version number. A major version changes the meaning of existing
keys; an older reader rejects the file with `NewerFormatError` and does not modify it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage import durable
from storage.durable import DamagedFileError
from storage.format_version import (
    CURRENT_FORMAT,
    FIRST_FORMAT,
    FORMAT_KEY,
    FormatVersion,
    parse_version,
)
from storage.regular_file import read_regular

__all__ = [
    "FORMAT_KEY",
    "NewerFormatError",
    "check_major",
    "explain_invalid",
    "parse_object",
    "read_object",
    "stamp_version",
    "write_object",
]


class NewerFormatError(DamagedFileError):
    """A stored file needs a newer release; the file is not damaged."""

    def __init__(self, path: Path, reason: str) -> None:
        RuntimeError.__init__(self, f"{str(path)!r} needs a newer version of Tuneserve: {reason}")
        self.path, self.reason = path, reason


def read_object(path: Path) -> dict[str, Any]:
    """Read a stored JSON object, including its `format_version` if it has one.

    Raises `FileNotFoundError`, `NewerFormatError` for a newer major version, and
    `DamagedFileError` for a file that cannot be read or is not a JSON object.
    """
    try:
        content = read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as exc:
        raise DamagedFileError(path, exc.strerror or type(exc).__name__) from exc
    return parse_object(path, content)


def parse_object(path: Path, content: bytes) -> dict[str, Any]:
    """Parse the content of a stored JSON object; `path` is for the messages.

    Raises `NewerFormatError` and `DamagedFileError` as `read_object` does.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise DamagedFileError(path, f"it is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise DamagedFileError(path, f"it contains a JSON {kind}, expected an object")
    check_major(path, value)
    return value


def check_major(path: Path, value: Mapping[str, Any]) -> None:
    """Raise `NewerFormatError` for an object of a newer major version.

    Raises `DamagedFileError` if its version is invalid.
    """
    version = _parse_version(path, value)
    if version.major > CURRENT_FORMAT.major:
        raise NewerFormatError(path, _describe_newer(version))


def write_object(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` with `value` and the format version; see `durable.write_json`."""
    durable.write_json(path, stamp_version(path, value))


def stamp_version(path: Path, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` with the version of this release, or with its own version if that is newer."""
    version = max(_parse_version(path, value), CURRENT_FORMAT)
    return {**value, FORMAT_KEY: str(version)}


def explain_invalid(path: Path, value: Mapping[str, Any], reason: str) -> DamagedFileError:
    """Return the error for an object without the expected content.

    If a newer release wrote the object, that is the likely cause: return a `NewerFormatError`.
    """
    version = _parse_version(path, value)
    if version > CURRENT_FORMAT:
        return NewerFormatError(path, f"{_describe_newer(version)}; {reason}")
    return DamagedFileError(path, reason)


def _parse_version(path: Path, value: Mapping[str, Any]) -> FormatVersion:
    try:
        return parse_version(value.get(FORMAT_KEY, str(FIRST_FORMAT)))
    except ValueError as exc:
        raise DamagedFileError(path, str(exc)) from exc


def _describe_newer(version: FormatVersion) -> str:
    return f"its format is {version}, and this version writes {CURRENT_FORMAT}"
