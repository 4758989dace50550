"""The peak memory of processes that come and go."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_INTERVAL_S = 0.02
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class PeakMemory:
    """The largest resident memory of each process seen so far, by its command, in bytes."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    def note(self, process: psutil.Process) -> None:
        """Note the peak of a process, which the kernel keeps; one that has ended is left out."""
        try:
            found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
            command = " ".join(process.cmdline())[-60:]
        except (psutil.Error, OSError):
            return
        if found and command:
            self.peaks[command] = max(self.peaks.get(command, 0), int(found[1]) << 10)


@contextmanager
def watch_memory(root: psutil.Process) -> Iterator[PeakMemory]:
    """Watch a process and all its descendants, such as those that render, while the body runs."""
    found = PeakMemory()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_INTERVAL_S):
            try:
                processes = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in processes:
                found.note(process)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
