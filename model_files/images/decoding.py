"""Decoding of encoded images, and which of them can be used.

A small file may declare an enormous image, so the size in its header is checked before anything is
decoded.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_IMAGE_BYTES = 20_000_000
MAX_IMAGE_PIXELS = 50_000_000
MAX_ASPECT_RATIO = 100
"""The longer side by the shorter: a processor scales the shorter one to the model's size."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_MAX_REASON_CHARACTERS = 100


class ImageFault(ValueError):  # noqa: N818 - becomes the fault of a row or of a request
    """Why an image cannot be used: a pattern, which is the kind of fault, and its values."""

    def __init__(self, pattern: str, *values: object) -> None:
        super().__init__(pattern.format(*values))
        self.pattern, self.values = pattern, values


def check_image_bytes(size_bytes: int, shown: str) -> None:
    """Raise `ImageFault` for an encoded image that is too large; `shown` names it."""
    if size_bytes > MAX_IMAGE_BYTES:
        raise ImageFault(
            "{} has {:,} bytes, expected at most {:,} of an image",
            shown,
            size_bytes,
            MAX_IMAGE_BYTES,
        )


def measure_image(encoded: bytes, shown: str) -> int:
    """Return the number of pixels in the header of an image; nothing is decoded.

    Raises `ImageFault` for an image that is too large or of another format.
    """
    check_image_bytes(len(encoded), shown)
    with _describe_faults(shown), Image.open(BytesIO(encoded), formats=_FORMATS) as image:
        _check_size(image.size, shown)
        return image.width * image.height


def check_image(encoded: bytes, shown: str) -> None:
    """Raise `ImageFault` for an image that is too large or that cannot be decoded."""
    check_image_bytes(len(encoded), shown)
    with _describe_faults(shown), Image.open(BytesIO(encoded), formats=_FORMATS) as image:
        _check_size(image.size, shown)
        image.draft("RGB", (1, 1))  # decodes all of a JPEG at an eighth of its size
        image.load()


def read_image(encoded: bytes, shown: str) -> Image.Image:
    """Check and decode an image as `decode_image` does; raises `ImageFault`."""
    measure_image(encoded, shown)
    with _describe_faults(shown):
        return decode_image(encoded)


def decode_image(encoded: bytes | memoryview) -> Image.Image:
    """Decode an image that was checked, as RGB, turned upright by its EXIF orientation."""
    with _ignore_warnings(), Image.open(BytesIO(encoded), formats=_FORMATS) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def _check_size(size: tuple[int, int], shown: str) -> None:
    width, height = size
    if width * height > MAX_IMAGE_PIXELS:
        raise ImageFault(
            "{} has {:,} × {:,} pixels, expected at most {:,} in total",
            shown,
            width,
            height,
            MAX_IMAGE_PIXELS,
        )
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise ImageFault(
            "{} has {:,} × {:,} pixels, expected one side at most {} times the other",
            shown,
            width,
            height,
            MAX_ASPECT_RATIO,
        )


@contextmanager
def _describe_faults(shown: str) -> Iterator[None]:
    """Translate whatever Pillow raises for an image to `ImageFault`."""
    try:
        with _ignore_warnings():
            yield
    except ImageFault:
        raise
    except UnidentifiedImageError as exc:
        formats = ", ".join(_FORMATS)
        raise ImageFault("{} is not an image, expected one of {}", shown, formats) from exc
    except Image.DecompressionBombError as exc:
        raise ImageFault(
            "{} has more than {:,} pixels, the limit for an image", shown, MAX_IMAGE_PIXELS
        ) from exc
    except Exception as exc:  # whatever Pillow raises for a damaged file
        reason = (str(exc) or type(exc).__name__)[:_MAX_REASON_CHARACTERS]
        raise ImageFault("{} cannot be decoded ({})", shown, reason) from exc


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings, such as of large images and faulty metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
