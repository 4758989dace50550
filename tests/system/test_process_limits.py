"""Limits on memory and CPU time, in a process of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LIMITED = """
import sys
from system.process_limits import lift_memory_limit, limit_memory

limit_memory(0, extra_bytes=32 << 20)
if sys.argv[1] == "lifted":
    lift_memory_limit()
elif sys.argv[1] == "mapped":
    limit_memory(256 << 20, extra_bytes=32 << 20)
try:
    len(bytes(128 << 20))
    print("allocated")
except MemoryError:
    print("refused")
"""
BUSY = """
from system.process_limits import limit_cpu

limit_cpu(1)
while True:
    pass
"""


@pytest.mark.parametrize(
    ("state", "result"), [("limited", "refused"), ("lifted", "allocated"), ("mapped", "allocated")]
)
def test_memory_beyond_the_limit_is_refused(state: str, result: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, state], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == result


def test_a_process_that_exceeds_its_cpu_time_is_ended() -> None:
    ran = subprocess.run([sys.executable, "-c", BUSY], check=False, timeout=60)
    assert ran.returncode == -signal.SIGXCPU


CHILD = """
import os, sys, time
from system.process_limits import end_with_parent

end_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys

command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(child.stdout.readline().decode(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_child_ends_with_a_parent_that_is_killed() -> None:
    command = [sys.executable, "-c", PARENT, CHILD]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    child = Path(f"/proc/{int(ran.stdout)}/stat")
    wait_until(lambda: not is_alive(child), 10, "the child has ended")


def is_alive(stat: Path) -> bool:
    """Return whether a process, by its file in /proc, has not ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_child_of_a_parent_that_has_ended_ends_at_once() -> None:
    command = [sys.executable, "-c", CHILD, "1" if os.getpid() != 1 else "2"]
    ran = subprocess.run(command, capture_output=True, check=False, timeout=30)
    assert (ran.returncode, ran.stdout) == (1, b"")


def test_process_offers_itself_for_killing() -> None:
    code = "from system.process_limits import offer_for_killing as offer; offer()"
    shown = "print(open('/proc/self/oom_score_adj').read())"
    command = [sys.executable, "-c", f"{code}; {shown}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1000"
