"""The CPU priority of threads, processes and sessions.

Linux shares the processors among sessions first, unless their control group does so: a niceness
counts only within a session. Sources: setpriority(2), and "The autogroup feature" in sched(7).
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

_THREAD_NICENESS = 10
_PROCESS_NICENESS = 15
_SESSION_NICENESS = 15
_AUTOGROUP = Path("/proc/self/autogroup")


def lower_thread_priority() -> None:
    """Lower the priority of this thread and of those that it starts; this cannot be undone.

    Does nothing except on Linux, where niceness is per thread and not per process.
    """
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # Ray's own for workers is 15
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _THREAD_NICENESS))


def lower_process_priority() -> None:
    """Lower the CPU priority of this process: training takes hours, but a request must be quick.

    By default Ray does the same with all its workers; the application disables that, so that
    serving keeps its priority. On Linux each thread has its own niceness, which the threads that it
    starts inherit.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            niceness = os.getpriority(os.PRIO_PROCESS, int(thread.name))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), max(niceness, _PROCESS_NICENESS))


def lower_session_priority() -> None:
    """Lower the CPU priority of all processes of this session, compared with other sessions.

    Only for a session that does nothing else. Does nothing where sessions have no priority.
    """
    with suppress(OSError):
        _AUTOGROUP.write_text(str(_SESSION_NICENESS))


def move_to_low_priority_session() -> None:
    """Move this process to a new session with a low CPU priority.

    Ray starts its workers in the session of the servers, which competes with that of a browser on
    the same machine. Does nothing where sessions have no priority.
    """
    if not _AUTOGROUP.exists():
        return
    with suppress(PermissionError):  # its parent is in another session
        if os.getpgrp() == os.getpid():  # which may not create a session: join another group before
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()
        lower_session_priority()
