"""Rejects URLs where a file system path is expected."""

import os
import re

# Also matches one slash, since `Path` collapses two slashes to one.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MAX_SHOWN_CHARACTERS = 200


def is_url(place: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URL, such as 's3://bucket/key' or 'https://host/file'."""
    return _URL.match(os.fspath(place)) is not None


def is_bucket_url(place: str | os.PathLike[str]) -> bool:
    """Return whether a location is in a bucket of object storage: 's3://bucket/key'."""
    return os.fspath(place).startswith("s3://")


def check_local_path(
    name: str, place: str | os.PathLike[str], expected: str = "a path of the file system"
) -> None:
    """Raise `ValueError` for a URL, which would silently become a folder named 's3:'.

    The message contains `name`, the setting or option, and `expected`, its valid kind of value.
    """
    if is_url(place):
        raise ValueError(
            f"{name} is {os.fspath(place)[:_MAX_SHOWN_CHARACTERS]!r}, expected {expected}: object "
            "storage and other URLs are not supported yet. Download the data or mount the bucket, "
            "and use the path where the data is"
        )
