"""Progress in bytes, reported a few times a second and shown as a bar."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

_PROGRESS_INTERVAL_S = 0.25
OnBytes = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


@contextmanager
def show_bytes(console: Console, doing: str) -> Iterator[OnBytes]:
    """Show a progress bar that the body updates with the yielded function; remove it at the end."""
    bar = Progress(
        TextColumn(doing),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class ByteMeter:
    """A meter of the bytes read from all sources, which reports a few times a second."""

    def __init__(self, total_bytes: int, on_progress: OnBytes | None) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._done_bytes = 0
        self._told_at = 0.0

    def report(self, position: int) -> None:
        """Report `position` bytes read of the current source, unless the last report is recent."""
        now = time.monotonic()
        if self._on_progress is not None and now - self._told_at >= _PROGRESS_INTERVAL_S:
            self._told_at = now
            self._on_progress(self._done_bytes + position, self._total_bytes)

    def finish_source(self, size_bytes: int) -> None:
        """Count a source as completely read, and always report."""
        self._done_bytes += size_bytes
        self._told_at = 0.0
        self.report(0)
