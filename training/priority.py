"""Which of a machine's processes goes first."""

import os
from contextlib import suppress
from pathlib import Path

_NICENESS = 15


def yield_to_others() -> None:
    """Let other processes go before this one: a training takes hours, an answer is wanted at once.

    Ray does the same with all its workers, unless it is told otherwise; the application tells it
    otherwise, so that what answers is not among them. On Linux each thread has a niceness of its
    own, which those that it starts inherit.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            niceness = os.getpriority(os.PRIO_PROCESS, int(thread.name))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), max(niceness, _NICENESS))
