"""Removal of secrets from messages about the hub."""

import os
import re
from collections.abc import Iterable

_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}|(?<=Bearer )[^\s'\"]+")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\")]*")
HIDDEN = "<hidden>"


def redact(text: str, secrets: Iterable[str | None] = ()) -> str:
    """Return a text without tokens of the hub, and without users and queries of URLs.

    Queries of URLs at which the hub stores files are signed.
    """
    for secret in (*secrets, *map(os.environ.get, _TOKEN_VARIABLES)):
        if secret:
            text = text.replace(secret, HIDDEN)
    return _QUERY.sub(r"\1", _USER.sub("", _TOKEN.sub(HIDDEN, text)))
