"""Server-sent events: the only writer and the only reader of them.

Events are written so that every client can parse them, and read per the standard.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterable

DONE = b"[DONE]"
"""The data of the last event of a streamed text, in OpenAI's format."""

_DATA = b"data:"
# Line ends in Python but not in the standard; clients that split at them are common.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def write_event(data: object, event_id: str | None = None) -> str:
    """Write one event, with JSON as its data."""
    shown = _ENCODER.encode(data).translate(_LINE_ENDS)
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}data: {shown}\n\n"


async def read_data(
    pieces: AsyncIterable[bytes], *, accepts_cut_end: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield the data of each event in a stream, one line of data per event.

    A last line without a line end is dropped, as the standard requires: it may be incomplete. With
    `accepts_cut_end`, its data is yielded, for servers that omit the line end.
    """
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                yield line.removeprefix(_DATA).strip()
    if accepts_cut_end and rest.startswith(_DATA):
        yield rest.removeprefix(_DATA).strip()
