"""Encoded images of rows: where they are read from, and which of them can be used."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from model_files.images import decoding
from model_files.images.decoding import ImageFault
from training.data.faults import RowFault, show_value


def find_image_path(value: Any) -> str | None:
    """Return the path in an image column, if its value is one; None for an image itself."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and value.get("bytes") is None and "base64" not in value:
        path = value.get("path")
        return path if isinstance(path, str) else None
    return None


def get_image_bytes(value: Any, column: str) -> bytes:
    """Return the encoded image that is itself the value of a column; raises `RowFault`."""
    if isinstance(value, Mapping) and value.get("bytes") is not None:
        value = value["bytes"]
    if isinstance(value, bytes):
        return value
    text = value.get("base64") if isinstance(value, Mapping) else None
    if not isinstance(text, str):
        raise RowFault(
            "{!r} is {}, expected the path of an image, or its bytes", column, show_value(value)
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise RowFault("{!r} has bytes that are not base64 ({})", column, exc) from exc


def find_image_file(folder: Path, path: str) -> Path:
    """Return the file of an image by its path in a folder; raises `RowFault` for one outside."""
    name = show_value(path)
    if PurePosixPath(path).is_absolute() or PureWindowsPath(path).drive:
        raise RowFault("{} is an absolute path, expected one relative to the rows' folder", name)
    if not path or "\0" in path or ".." in PurePosixPath(path).parts:
        raise RowFault("{} is no path of an image in the rows' folder", name)
    try:
        found = (folder / path).resolve()
    except (OSError, RuntimeError) as exc:  # a loop of links
        raise RowFault("{} cannot be opened ({})", name, type(exc).__name__) from exc
    if not found.is_relative_to(folder.resolve()):
        raise RowFault("{} is a link out of the rows' folder, expected a file in it", name)
    if not found.is_file():
        raise RowFault("there is no file {} in the rows' folder", name)
    return found


def read_image_file(file: Path, name: str) -> bytes:
    """Read an encoded image; raises `RowFault` if it is too large or cannot be read."""
    try:
        check_size(file.stat().st_size, name)
        return file.read_bytes()
    except OSError as exc:
        raise RowFault("{} cannot be read ({})", show_value(name), exc.strerror) from exc


def check_size(size_bytes: int, name: str) -> None:
    """Raise `RowFault` for an encoded image that is too large."""
    with _translate_fault():
        decoding.check_image_bytes(size_bytes, show_value(name))


def check_image(encoded: bytes, name: str) -> None:
    """Raise `RowFault` for an image that is too large or that cannot be decoded."""
    with _translate_fault():
        decoding.check_image(encoded, show_value(name))


@contextmanager
def _translate_fault() -> Iterator[None]:
    try:
        yield
    except ImageFault as exc:
        raise RowFault(exc.pattern, *exc.values) from exc
