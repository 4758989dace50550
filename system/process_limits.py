"""Limits of a child process: its memory and CPU time, and its end with its parent."""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

MAX_CPU_S = 60
MAX_EXTRA_BYTES = 2 << 30
_PR_SET_PDEATHSIG = 1  # prctl(2)
_GRACE_S = 10  # CPU seconds left to a process that handles SIGXCPU


def limit_memory(mapped_bytes: int, extra_bytes: int = MAX_EXTRA_BYTES) -> None:
    """Limit this process's address space to its current size plus `extra_bytes`.

    `mapped_bytes` are allowed in addition, for files that are mapped but not read.
    """
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = num_pages * os.sysconf("SC_PAGE_SIZE") + extra_bytes + mapped_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def lift_memory_limit() -> None:
    """Remove the limit that `limit_memory` set."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def limit_cpu(max_cpu_s: int = MAX_CPU_S) -> None:
    """Send this process SIGXCPU, which ends it by default, after `max_cpu_s` more CPU seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + max_cpu_s
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    new_hard = limit + _GRACE_S
    if hard != resource.RLIM_INFINITY:
        limit, new_hard = min(limit, hard), min(new_hard, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, new_hard))


def end_with_parent(parent_pid: int) -> None:
    """Let the system kill this process when its parent ends, on Linux; at once if it has ended.

    `parent_pid` is the process that started this one. It counts as ended with the thread that did.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def offer_for_killing() -> None:
    """Let the system kill this process before all others if memory is short, where it allows it."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
