"""What the processes of the cluster on this machine use, by purpose.

Ray sets the titles of its workers, such as `ray::ServeReplica:tuneserve:Generator`. All other
processes have the purpose of the nearest ancestor with such a title, for example the engines of a
generator.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

import psutil

Purpose = Literal["serving", "training", "system"]
PURPOSES: tuple[Purpose, ...] = ("serving", "training", "system")

_RAYLET = "raylet"
_JOB_MODULE = "apps.fine_tuning.cluster.job_main"
_SERVING_TITLES = ("ray::ServeReplica", "ray::ServeController", "ray::ProxyActor")
_SYSTEM_TITLES = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


class ProcessInfo(NamedTuple):
    """One process; `memory_bytes` is what it shares with no file or other process."""

    pid: int
    parent: int
    title: str
    memory_bytes: int
    cpu_s: float


class PurposeUse(NamedTuple):
    """What the processes of one purpose use; the share of all processors is from 0 to 1."""

    memory_bytes: int
    cpu_share: float | None


class ProcessMonitor:
    """Measures the processes of this process's cluster. Not thread-safe."""

    def __init__(self) -> None:
        self._cpu_s: dict[int, float] = {}
        self._read_at = 0.0

    def read(self) -> dict[Purpose, PurposeUse] | None:
        """Return the use by purpose; None if Ray did not start this process.

        The use of the processor is the mean since the last reading, and None at the first one.
        """
        root = _find_cluster_root()
        if root is None:
            return None
        found = list(_list_processes(root))
        now, before = time.monotonic(), self._cpu_s
        elapsed_s, self._read_at = now - self._read_at, now
        self._cpu_s = {process.pid: process.cpu_s for process in found}
        capacity_s = elapsed_s * (psutil.cpu_count() or 1)
        memory = dict.fromkeys(PURPOSES, 0)
        cpu_s = dict.fromkeys(PURPOSES, 0.0)
        for process, purpose in zip(found, assign_purposes(found), strict=True):
            memory[purpose] += process.memory_bytes
            cpu_s[purpose] += max(0.0, process.cpu_s - before.get(process.pid, 0.0))
        return {
            purpose: PurposeUse(
                memory[purpose], min(1.0, cpu_s[purpose] / capacity_s) if before else None
            )
            for purpose in PURPOSES
        }


def assign_purposes(processes: Iterable[ProcessInfo]) -> Iterator[Purpose]:
    """Yield the purpose of each process of one cluster."""
    known = {process.pid: process for process in processes}
    for process in known.values():
        current: ProcessInfo | None = process
        passed: set[int] = set()
        purpose: Purpose | None = None
        while current is not None and purpose is None and current.pid not in passed:
            passed.add(current.pid)
            purpose = _read_title(current.title)
            current = known.get(current.parent)
        yield purpose or "system"


def _read_title(title: str) -> Purpose | None:
    if title.startswith(_SERVING_TITLES):
        return "serving"
    if title.startswith(_SYSTEM_TITLES):
        return "system"
    return "training" if title.startswith("ray::") or _JOB_MODULE in title else None


def _find_cluster_root() -> psutil.Process | None:
    """Return the process whose descendants are the cluster's on this machine.

    That is the one that started Ray here, or else Ray's own.
    """
    try:
        raylet = psutil.Process(os.getppid())
        if raylet.name() != _RAYLET:
            return None
        starter = raylet.parent()
    except psutil.Error:
        return None
    return raylet if starter is None or starter.pid <= 1 else starter


def _list_processes(root: psutil.Process) -> Iterator[ProcessInfo]:
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error), process.oneshot():  # it may have ended
            memory, times = process.memory_info(), process.cpu_times()
            yield ProcessInfo(
                process.pid,
                process.ppid(),
                " ".join(process.cmdline()),
                memory.rss - getattr(memory, "shared", 0),
                times.user + times.system,
            )


def list_shares(uses: Mapping[Purpose, PurposeUse]) -> dict[str, float] | None:
    """Return the shares of the processors by purpose; None if they are not known yet."""
    shares = {purpose: use.cpu_share for purpose, use in uses.items()}
    known: dict[str, float] = {
        purpose: round(share, 3) for purpose, share in shares.items() if share is not None
    }
    return known if len(known) == len(shares) else None
