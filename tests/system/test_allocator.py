"""Freed memory blocks are returned to the system, independent of earlier frees."""

import subprocess
import sys

import pytest

PROGRAM = """
import re, sys, threading
from pathlib import Path
from system.allocator import return_large_blocks

if sys.argv[1] == "set":
    return_large_blocks()

def work():
    b"x" * (30 << 20)
    blocks = [b"x" * (1 << 20) for _ in range(20)]
    blocks.clear()
    done.set()
    ended.wait()

def read_mb():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before = read_mb()
done, ended = threading.Event(), threading.Event()
worker = threading.Thread(target=work)
worker.start()
done.wait()
print(read_mb() - before)
ended.set()
"""


def count_kept_mb(argument: str) -> float:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, check=True
    )
    return float(ran.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_blocks_are_returned() -> None:
    assert count_kept_mb("unset") > 15
    assert count_kept_mb("set") < 5
