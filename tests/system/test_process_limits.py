"""Limits on memory and CPU time, in a process of their own."""

import signal
import subprocess
import sys

import pytest

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
