"""Standard error of a command whose output may go to the disk that is full.

Schedulers write the output of a command beside its files. That a line finds no room there must not
change how the command ends, which its exit status says.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from storage.machine_faults import is_out_of_room


class _LossyOutput(io.TextIOBase):
    """Writes to a file descriptor at once, and drops what finds no room.

    Nothing stays in a buffer, which Python would write when it ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        left = text.encode(self.encoding, "backslashreplace")
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as exc:
            if not is_out_of_room(exc):
                raise
        return len(text)


@contextmanager
def drop_what_finds_no_room() -> Iterator[None]:
    """Let `sys.stderr` drop what finds no room while the body runs."""
    stream = sys.stderr
    try:
        stream.fileno()
    except (AttributeError, OSError):  # no file, as in a test
        yield
        return
    stream.flush()
    sys.stderr = _LossyOutput(stream)
    try:
        yield
    finally:
        sys.stderr = stream
