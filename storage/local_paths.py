"""Refuses URLs where a path of the file system is expected."""

import os
import re

# Also with one slash, which is what `Path` makes of two.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MAX_SHOWN_CHARACTERS = 200


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether a place is named by a URL, such as 's3://bucket/key' or 'https://host/file'."""
    return _URL.match(os.fspath(place)) is not None


def check_local_path(
    name: str, place: str | os.PathLike[str], expected: str = "a path of the file system"
) -> None:
    """Raise `ValueError` for a URL, which would silently become a folder named 's3:'.

    `name` is the setting or option that the message names, `expected` what it may be.
    """
    if is_url(place):
        raise ValueError(
            f"{name} is {os.fspath(place)[:_MAX_SHOWN_CHARACTERS]!r}, expected {expected}: object "
            "storage and other URLs are not supported yet. Download the data or mount the bucket, "
            "and use the path where the data is"
        )
