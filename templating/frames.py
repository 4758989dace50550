"""Messages between a process that renders templates and its client: a length, then JSON.

JSON, not pickle: a template is untrusted code in a sandbox, and what its process sends back must
not be able to run anything in the client.
"""

import json
from typing import Any

LENGTH_BYTES = 8


def pack(value: Any) -> bytes:
    """Serialise a value, with its length in front. Values that JSON lacks become their type."""
    text = json.dumps(value, ensure_ascii=False, default=_name_type)
    body = text.encode("utf-8", "surrogatepass")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def unpack_length(head: bytes | bytearray) -> int:
    """Return how many bytes follow a length of `LENGTH_BYTES`."""
    return int.from_bytes(head, "little")


def unpack(body: bytes | bytearray) -> Any:
    """Parse the bytes that follow a length; raises `ValueError` or `RecursionError`."""
    return json.loads(body.decode("utf-8", "surrogatepass"))


def _name_type(value: object) -> str:
    return f"<{type(value).__name__}>"  # as transformers shows such values to templates
