"""Frames between a render process and its client: a length, then JSON.

JSON is used instead of pickle because a template is untrusted code in a sandbox: the data that its
process sends must not be able to execute code in the client.
"""

import json
from typing import Any

LENGTH_BYTES = 8


def pack(value: Any) -> bytes:
    """Serialize a value with a length prefix; values that JSON cannot represent become `<type>`."""
    text = json.dumps(value, ensure_ascii=False, default=_name_type)
    body = text.encode("utf-8", "surrogatepass")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def unpack_length(head: bytes | bytearray) -> int:
    """Return the number of bytes that follow a length prefix of `LENGTH_BYTES`."""
    return int.from_bytes(head, "little")


def unpack(body: bytes | bytearray) -> Any:
    """Parse the bytes that follow a length prefix; raises `ValueError` or `RecursionError`."""
    return json.loads(body.decode("utf-8", "surrogatepass"))


def _name_type(value: object) -> str:
    return f"<{type(value).__name__}>"  # transformers shows such values to templates in this form
