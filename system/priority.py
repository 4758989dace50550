"""The CPU priority of threads, processes and sessions.

Linux shares the processors among sessions first, unless a control group shares them: a niceness
counts only within a session. Sources: setpriority(2), and "The autogroup feature" in sched(7).
"""

import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

_THREAD_NICENESS = 10
_PROCESS_NICENESS = 15
_SESSION_NICENESS = 15
_AUTOGROUP = Path("/proc/self/autogroup")
_NUM_ATTEMPTS = 50
_INTERVAL_S = 0.1
_logger = logging.getLogger(__name__)


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

    Only for a session that does nothing else. Does nothing where sessions have no priority. Without
    privileges, Linux permits one such change in 0.1 s on the whole machine: waits for its turn.
    """
    if not _AUTOGROUP.exists():
        return
    for _ in range(_NUM_ATTEMPTS):
        try:
            _AUTOGROUP.write_text(str(_SESSION_NICENESS))
        except BlockingIOError:
            time.sleep(_INTERVAL_S * (1 + os.getpid() % 8 / 8))  # others wait for their turn too
        except OSError as exc:
            _logger.warning("The priority of the session stays as it is: %s", exc)
            return
        else:
            return
    _logger.warning("The priority of the session stays as it is: others change theirs all the time")


def move_to_low_priority_session() -> None:
    """Move this process to a new session with a low CPU priority.

    Ray starts its workers in the session of the servers, which competes with that of a browser on
    the same machine. Does nothing where sessions have no priority.
    """
    if not _AUTOGROUP.exists():
        return
    group = os.getpgrp()
    try:
        if group == os.getpid():  # the leader of a group cannot create a session
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()
    except PermissionError as exc:  # it is a session's leader, or a child of it is in its group
        _logger.warning("The process stays in its session: %s", exc)
        with suppress(PermissionError):
            os.setpgid(0, group)
        return
    lower_session_priority()
