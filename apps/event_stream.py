"""Server-sent events, written so that every client reads them, and read as the standard says."""

import json
from typing import Any

_DATA = b"data:"
# Ends of lines to Python, though not to the standard: clients that split by them are common.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def write_event(data: Any, event_id: str | None = None) -> str:
    """Write one event, with JSON as its data."""
    shown = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}data: {shown}\n\n"


class DataReader:
    """Finds the data in a stream of events that comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[str]:
        """Take the next piece, and return the lines of data that are whole now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [
            line.removeprefix(_DATA).strip().decode(errors="replace")
            for line in lines
            if line.startswith(_DATA)
        ]
