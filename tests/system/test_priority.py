"""The CPU priority of threads, processes and sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system import priority
from system.priority import lower_session_priority, lower_thread_priority
from system.threads import run_in_new_thread

pytestmark = pytest.mark.anyio

SHOW_NICENESS = """
import os, threading
from system.priority import lower_process_priority

go, done = threading.Event(), threading.Event()
def show():
    go.wait()
    print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=show)
thread.start()
lower_process_priority()
go.set()
thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


SHOW_SESSIONS = """
import os, sys
from pathlib import Path
from system.priority import move_to_low_priority_session

def show():
    words = Path("/proc/self/autogroup").read_text().split() or ["none"]
    print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), words[-1], flush=True)

if sys.argv[1] != "member":  # as Ray's workers, which are in the session of their parent
    os.setpgid(0, 0)
if sys.argv[1] == "parent":
    import subprocess

    child = subprocess.Popen(["sleep", "60"])
show()
move_to_low_priority_session()
show()
if sys.argv[1] == "parent":
    child.kill()
"""
has_sessions_with_priority = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="sessions have no priority here"
)


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a process's there")
async def test_a_lower_priority_does_not_affect_other_threads() -> None:
    def read_niceness(is_lowered: bool) -> int:
        if is_lowered:
            lower_thread_priority()
        return os.getpriority(os.PRIO_PROCESS, 0)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert await run_in_new_thread(read_niceness, True) == max(before, 10)
    assert await run_in_new_thread(read_niceness, False) == before


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a process's there")
async def test_the_priority_of_a_thread_is_never_raised() -> None:
    def read_niceness() -> int:
        os.setpriority(os.PRIO_PROCESS, 0, 15)
        lower_thread_priority()
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert await run_in_new_thread(read_niceness) == 15


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("before", "after"), [("0", "15"), ("17", "17")])
def test_all_threads_of_a_process_get_a_lower_priority(before: str, after: str) -> None:
    command = ["nice", "-n", before, sys.executable, "-c", SHOW_NICENESS]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [after, after]


@has_sessions_with_priority
@pytest.mark.parametrize("kind", ["leader", "member"])
def test_process_moves_to_a_session_of_its_own(kind: str) -> None:
    before = Path("/proc/self/autogroup").read_text()
    shown = subprocess.run(
        [sys.executable, "-c", SHOW_SESSIONS, kind], capture_output=True, text=True, check=True
    )
    ours = (before.split() or ["none"])[-1]  # the first session of a machine has no priority
    is_leader = str(kind == "leader")
    assert shown.stdout.split() == ["False", is_leader, ours, "True", "True", "15"]
    assert Path("/proc/self/autogroup").read_text() == before


@has_sessions_with_priority
def test_session_leader_keeps_its_session() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW_SESSIONS, "member"],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split()[3:5] == ["True", "True"]


@has_sessions_with_priority
def test_process_whose_child_needs_its_group_stays_in_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW_SESSIONS, "parent"], capture_output=True, text=True, check=True
    )
    words = shown.stdout.split()
    assert words[:2] == words[3:5] == ["False", "True"]
    assert "stays in its session" in shown.stderr


class _BusyFile:
    """A file that cannot be written yet, as that of a session without privileges."""

    def __init__(self, num_refusals: int, fault: type[OSError]) -> None:
        self.num_refusals = num_refusals
        self.fault = fault
        self.written: list[str] = []

    def exists(self) -> bool:
        return True

    def write_text(self, text: str) -> None:
        if len(self.written) < self.num_refusals:
            self.written.append("")
            raise self.fault(11, "Resource temporarily unavailable")
        self.written.append(text)


def test_session_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    file = _BusyFile(2, BlockingIOError)
    monkeypatch.setattr(priority, "_AUTOGROUP", file)
    lower_session_priority()
    assert file.written == ["", "", "15"]


def test_session_that_may_not_change_its_priority_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = _BusyFile(99, PermissionError)
    monkeypatch.setattr(priority, "_AUTOGROUP", file)
    lower_session_priority()
    assert file.written == [""]
    assert "The priority of the session stays as it is" in caplog.text
