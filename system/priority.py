"""The CPU priority of training processes."""

import os
from contextlib import suppress
from pathlib import Path

_NICENESS = 15


def yield_to_others() -> None:
    """Lower the CPU priority of this process: training takes hours, but a request must be quick.

    By default Ray does the same with all its workers; the application disables that, so that
    serving keeps its priority. On Linux each thread has its own niceness, which the threads that it
    starts inherit.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            niceness = os.getpriority(os.PRIO_PROCESS, int(thread.name))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), max(niceness, _NICENESS))
