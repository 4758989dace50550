"""The CPU priority (niceness) of training processes."""

import subprocess
import sys

import pytest

SHOW = """
import os, threading
from system.priority import yield_to_others

go, done = threading.Event(), threading.Event()
def show():
    go.wait()
    print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=show)
thread.start()
yield_to_others()
go.set()
thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.parametrize(("before", "after"), [("0", "15"), ("17", "17")])
def test_all_its_threads_let_others_go_first_and_never_take_more(before: str, after: str) -> None:
    command = ["nice", "-n", before, sys.executable, "-c", SHOW]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [after, after]
