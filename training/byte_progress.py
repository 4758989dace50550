"""A progress bar of bytes, for what takes longer than a second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

OnBytes = Callable[[int, int], None]
"""Called with the bytes done and their number."""


@contextmanager
def show_bytes(console: Console, doing: str) -> Iterator[OnBytes]:
    """Show a bar while the body calls what it is given; the bar is gone afterwards."""
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
