"""Standard error of a command whose output may go to a full disk.

Job schedulers write a command's output beside its files. A line that cannot be written to a full
disk must not change the exit status of the command.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from system.machine_faults import is_out_of_space


class _LossyOutput(io.TextIOBase):
    """An unbuffered writer to a file descriptor that drops output while the disk is full.

    A buffer would be flushed by Python at exit, and fail then.
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
            if not is_out_of_space(exc):
                raise
        return len(text)


@contextmanager
def drop_output_on_full_disk() -> Iterator[None]:
    """Make `sys.stderr` drop output that a full disk cannot take while the body runs."""
    stream = sys.stderr
    try:
        stream.fileno()
    except (AttributeError, OSError):  # not a file, as in a test
        yield
        return
    stream.flush()
    sys.stderr = _LossyOutput(stream)
    try:
        yield
    finally:
        sys.stderr = stream
