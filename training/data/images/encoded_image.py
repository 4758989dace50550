"""Encoded images: where they are read from, and which of them can be used.

A small file may declare an enormous image, so the size in its header is checked before anything is
decoded.
"""

import base64
import binascii
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from training.data.faults import RowFault, show_value

MAX_IMAGE_BYTES = 20_000_000
MAX_IMAGE_PIXELS = 50_000_000
MAX_ASPECT_RATIO = 100
"""The longer side by the shorter: a processor enlarges the shorter one to the model's size."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_MAX_REASON_CHARACTERS = 100


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
        _check_bytes(file.stat().st_size, name)
        return file.read_bytes()
    except OSError as exc:
        raise RowFault("{} cannot be read ({})", show_value(name), exc.strerror) from exc


def check_image(encoded: bytes, name: str) -> None:
    """Raise `RowFault` for an image that is too large or that cannot be decoded."""
    _check_bytes(len(encoded), name)
    shown = show_value(name)
    try:
        with _ignore_warnings(), Image.open(BytesIO(encoded), formats=_FORMATS) as image:
            _check_size(image.size, shown)
            image.draft("RGB", (1, 1))  # decodes all of a JPEG at an eighth of its size
            image.load()
    except RowFault:
        raise
    except UnidentifiedImageError as exc:
        formats = ", ".join(_FORMATS)
        raise RowFault("{} is not an image, expected one of {}", shown, formats) from exc
    except Image.DecompressionBombError as exc:
        raise RowFault(
            "{} has more than {:,} pixels, the limit for an image", shown, MAX_IMAGE_PIXELS
        ) from exc
    except Exception as exc:  # whatever Pillow raises for a damaged file
        reason = (str(exc) or type(exc).__name__)[:_MAX_REASON_CHARACTERS]
        raise RowFault("{} cannot be decoded ({})", shown, reason) from exc


def decode_image(encoded: bytes | memoryview) -> Image.Image:
    """Decode an image that was checked, as RGB, turned upright by its EXIF orientation."""
    with _ignore_warnings(), Image.open(BytesIO(encoded), formats=_FORMATS) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def _check_bytes(size_bytes: int, name: str) -> None:
    if size_bytes > MAX_IMAGE_BYTES:
        raise RowFault(
            "{} has {:,} bytes, expected at most {:,} of an image",
            show_value(name),
            size_bytes,
            MAX_IMAGE_BYTES,
        )


def _check_size(size: tuple[int, int], shown: str) -> None:
    width, height = size
    if width * height > MAX_IMAGE_PIXELS:
        raise RowFault(
            "{} has {:,} × {:,} pixels, expected at most {:,} in total",
            shown,
            width,
            height,
            MAX_IMAGE_PIXELS,
        )
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise RowFault(
            "{} has {:,} × {:,} pixels, expected one side at most {} times the other",
            shown,
            width,
            height,
            MAX_ASPECT_RATIO,
        )


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings, such as of large images and faulty metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
