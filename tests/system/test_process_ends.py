import subprocess
import sys
import time

import psutil

from system.process_ends import is_running, wait_for_ends


def test_zombie_has_ended() -> None:
    """Previously, a training command waited for its cluster's zombies until a time limit."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    started = time.monotonic()
    assert wait_for_ends([process], 30) == []
    assert time.monotonic() - started < 20
    assert process.status() == psutil.STATUS_ZOMBIE, "nobody has reaped it"
    ended.wait()
    assert not is_running(process)


def test_running_process_is_returned_after_the_time_limit() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as running:
        process = psutil.Process(running.pid)
        assert wait_for_ends([process], 0.1) == [process]
        running.kill()
        assert wait_for_ends([process], 10) == []
