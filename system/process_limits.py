"""Resource limits for a process that handles untrusted content."""

import os
import resource
from pathlib import Path

MAX_CPU_S = 60
MAX_EXTRA_BYTES = 2 << 30
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
