import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from training.run import lease
from training.run.folder import RunBusyError, RunFolder
from training.run.lease import LEASE_S, LeaseWatch, acquire_lease


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def holder(run: RunFolder) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds the lease of the run until it is killed."""
    program = (
        "import sys, time; from pathlib import Path;"
        "from training.run.lease import acquire_lease; from training.run.folder import RunFolder\n"
        f"with acquire_lease(RunFolder(Path({str(run.path)!r}))):\n"
        " print('acquired', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"acquired\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_lease_is_held_by_one_process_at_a_time(
    run: RunFolder, holder: "subprocess.Popen[bytes]"
) -> None:
    assert LeaseWatch().is_alive(run)
    with pytest.raises(RunBusyError, match="^another process computes"), acquire_lease(run):
        pass


def test_killed_process_on_same_machine_is_detected_at_once(
    run: RunFolder, holder: "subprocess.Popen[bytes]"
) -> None:
    watch = LeaseWatch()
    assert watch.is_alive(run)
    holder.kill()
    holder.wait()
    assert run.heartbeat_file.exists(), "the killed process removed its heartbeat"
    assert not watch.is_alive(run)
    with acquire_lease(run):
        assert watch.is_alive(run)


def test_released_lease_is_not_alive(run: RunFolder) -> None:
    with acquire_lease(run):
        pass
    assert not LeaseWatch().is_alive(run)


def test_run_without_heartbeat_is_not_alive(run: RunFolder) -> None:
    assert not LeaseWatch().is_alive(run)


def test_lease_of_other_machine_expires_without_heartbeat(run: RunFolder) -> None:
    clock = Clock()
    watch = LeaseWatch(clock)
    for beat in range(3):
        run.heartbeat_file.write_text(f"another-machine 17 {beat}")
        assert watch.is_alive(run)
        clock.now += LEASE_S - 1
        assert watch.is_alive(run)
    clock.now += 2
    assert not watch.is_alive(run)
    assert LeaseWatch(clock).is_alive(run), "a new watch must first observe the heartbeat"


def test_heartbeat_is_updated(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_INTERVAL_S", 0.01)
    with acquire_lease(run):
        seen: set[str] = set()
        while len(seen) < 5:
            seen.add(run.heartbeat_file.read_text())
        assert not LeaseWatch()._seen


def test_process_that_lost_its_lease_is_killed(
    run: RunFolder, holder: "subprocess.Popen[bytes]"
) -> None:
    run.heartbeat_file.write_text("another-machine 17 1")
    assert holder.wait(20) == -signal.SIGKILL
    assert os.path.exists(run.heartbeat_file)
