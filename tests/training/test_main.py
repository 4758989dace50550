import subprocess
import sys

import psutil

from training.__main__ import end_leftovers


def test_what_outlives_its_cluster_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as hanging:
        assert hanging.stdout is not None
        hanging.stdout.readline()
        end_leftovers([psutil.Process(hanging.pid)], timeout_s=0.1)
        assert hanging.wait(5) < 0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    found = psutil.Process(gone.pid)
    gone.wait()
    end_leftovers([found])
