"""The peak memory of short-lived processes."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_INTERVAL_S = 0.02
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class PeakMemory:
    """The largest resident memory in bytes of each process seen so far, by command line."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    def note(self, process: psutil.Process) -> None:
        """Record the peak memory of a process from the kernel; ignore one that has ended."""
        try:
            found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
            command = " ".join(process.cmdline())[-60:]
        except (psutil.Error, OSError):
            return
        if found and command:
            self.peaks[command] = max(self.peaks.get(command, 0), int(found[1]) << 10)


@contextmanager
def watch_memory(root: psutil.Process) -> Iterator[PeakMemory]:
    """Watch a process and its descendants, such as render processes, while the body runs."""
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
