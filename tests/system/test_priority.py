"""The CPU priority of threads, processes and sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system.priority import lower_thread_priority
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
    priority = Path("/proc/self/autogroup").read_text().split()[-1]
    print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), priority, flush=True)

if sys.argv[1] == "leader":  # as Ray's workers are, but in the session of their parent
    os.setpgid(0, 0)
show()
move_to_low_priority_session()
show()
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
    ours = before.split()[-1]
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
