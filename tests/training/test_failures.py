from pathlib import Path

from training.failures import TellOfFailures, choose_failure, summarise_exception
from training.runs import RunFolder

LOST = RuntimeError("[pair.cc:534] Connection closed by peer [192.0.2.7]:4711")


def test_the_cause_is_told_and_not_what_followed_from_it(tmp_path: Path) -> None:
    full = OSError("No space left on device")
    assert choose_failure({0: LOST, 1: full}) == (1, full)
    assert choose_failure({0: full, 1: LOST}) == (0, full)
    assert choose_failure({2: LOST, 1: LOST}) == (1, LOST)
    traceback = RuntimeError(f"Traceback (most recent call last):\n  …\nOSError: {full}")
    TellOfFailures(str(tmp_path)).after_exception(None, {0: LOST, 3: traceback})
    (event,) = RunFolder(tmp_path).read_events()
    assert event["message"] == "Worker 3 was lost: OSError: No space left on device"
    assert (event["level"], event["data"]) == ("warn", {"ranks": [0, 3]})


def test_what_ray_says_of_killed_processes_is_told_in_short() -> None:
    killed = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
    gone = "The actor died because its node has died. Node Id: 4f2a"
    assert summarise_exception(RuntimeError(killed)).startswith("its process was killed")
    assert summarise_exception(RuntimeError(gone)) == "its node is gone"
