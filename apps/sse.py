"""Server-sent events, written so that every client can parse them, and read per the standard."""

import json
from typing import Any

_DATA = b"data:"
# Line ends in Python but not in the standard; clients that split at them are common.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def write_event(data: Any, event_id: str | None = None) -> str:
    """Write one event, with JSON as its data."""
    shown = _ENCODER.encode(data).translate(_LINE_ENDS)
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}data: {shown}\n\n"


class DataReader:
    """Incremental parser of the data in a stream of events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[str]:
        """Parse the next piece of the stream, and return the data lines that it completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [
            line.removeprefix(_DATA).strip().decode(errors="replace")
            for line in lines
            if line.startswith(_DATA)
        ]
