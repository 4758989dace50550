"""Distinguishes URLs from paths of the file system, and shows them without credentials."""

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


def hide_credentials(place: str | os.PathLike[str]) -> str:
    """Return a location as it may be shown: a URL without its user, password and query."""
    text = os.fspath(place)
    if not is_url(text):
        return text
    # A password may have any character, if it was not escaped.
    before, sign, rest = text.rpartition("@")
    shown = rest.partition("?")[0]
    return f"{before.partition(':')[0]}://…@{shown}" if sign else shown


def check_local_path(
    name: str, place: str | os.PathLike[str], expected: str = "a path of the file system"
) -> None:
    """Raise `ValueError` for a URL, which would silently become a folder named 's3:'.

    The message contains `name`, the setting or option, and `expected`, its valid kind of value.
    """
    if is_url(place):
        shown = hide_credentials(place)[:_MAX_SHOWN_CHARACTERS]
        raise ValueError(
            f"{name} is {shown!r}, expected {expected}: object "
            "storage and other URLs are not supported yet. Download the data or mount the bucket, "
            "and use the path where the data is"
        )
