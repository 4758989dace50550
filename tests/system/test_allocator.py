"""Freed memory blocks are returned to the system, or kept, independent of earlier frees."""

import subprocess
import sys

import pytest

PROGRAM = """
import re, sys, threading
from pathlib import Path
from system import allocator

if sys.argv[1] != "default":
    getattr(allocator, sys.argv[1])()

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

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def count_kept_mb(argument: str) -> float:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, check=True
    )
    return float(ran.stdout)


def test_large_blocks_are_returned() -> None:
    assert count_kept_mb("default") > 15
    assert count_kept_mb("return_large_blocks") < 5


def test_freed_memory_is_kept() -> None:
    assert count_kept_mb("keep_freed_memory") > 15
