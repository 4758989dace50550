"""The log of `tuneserve run`: the output of `serve run`, rotated by size and at every start."""

import logging
import os
from collections import deque
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Thread
from typing import IO

_LAST_LINES = 15


class _PrivateFileHandler(RotatingFileHandler):
    """Opens files that only their owner can read, whatever the umask is."""

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        os.fchmod(file.fileno(), 0o600)
        return file


class ServerLog:
    """Copies the output of a process into a private file.

    `path` contains the newest lines. `path.1` contains the lines before those, or those of the
    previous start, and so on up to `path.<num_old_files>`.
    """

    def __init__(self, path: Path, *, max_bytes: int, num_old_files: int) -> None:
        self.path = path
        for old in path.parent.glob(f"{path.name}.*"):
            old.chmod(0o600)  # earlier versions left it to the umask
        self._handler = _PrivateFileHandler(
            path,
            maxBytes=max_bytes,
            backupCount=num_old_files,
            encoding="utf-8",
            errors="backslashreplace",
        )
        if path.stat().st_size:
            self._handler.doRollover()
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._thread: Thread | None = None

    def follow(self, output: IO[bytes]) -> None:
        """Copy a process's output until its end, on a thread."""
        self._thread = Thread(target=self._copy, args=(output,), name="server-log", daemon=True)
        self._thread.start()

    def read_last_lines(self, timeout_s: float = 2.0) -> str:
        """Return the last lines of a process that has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return "\n".join(self._last)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the rest of the output, and close the file."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._handler.close()

    def _copy(self, output: IO[bytes]) -> None:
        for raw in output:
            line = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
            self._last.append(line)
            self._handler.handle(logging.makeLogRecord({"msg": line}))
