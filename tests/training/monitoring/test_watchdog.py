from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.waiting import wait_until
from training.monitoring.watchdog import Watchdog, report_stall
from training.run.folder import RunFolder
from training.run.run_log import log_to_file


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reports() -> list[Any]:
    return []


@pytest.fixture
def watchdog(clock: Clock, reports: list[Any]) -> Watchdog:
    return Watchdog(lambda *report: reports.append(report), min_stall_s=60.0, clock=clock)


def take_steps(watchdog: Watchdog, clock: Clock, *took_s: float) -> None:
    for step, seconds in enumerate(took_s, start=1):
        watchdog.begin_step(step)
        clock.now += seconds
        watchdog.end_step()


def test_step_of_twenty_medians_is_reported_once(
    watchdog: Watchdog, clock: Clock, reports: list[Any]
) -> None:
    take_steps(watchdog, clock, 10.0, 10.0, 11.0, 9.0, 500.0)
    watchdog.begin_step(6)
    clock.now += 199.0
    watchdog.check()
    assert reports == []
    clock.now += 1.0
    watchdog.check()
    clock.now += 500.0
    watchdog.check()
    ((step, waited_s, median_s, _),) = reports
    assert (step, waited_s, median_s) == (6, 200.0, 10.0)
    watchdog.end_step()
    watchdog.begin_step(7)
    clock.now += 210.0
    watchdog.check()
    assert [report[0] for report in reports] == [6, 7], "the next stall has a report of its own"


def test_min_stall_applies_to_fast_steps(
    watchdog: Watchdog, clock: Clock, reports: list[Any]
) -> None:
    take_steps(watchdog, clock, *[0.01] * 50)
    watchdog.begin_step(51)
    clock.now += 59.0
    watchdog.check()
    assert reports == []
    clock.now += 1.0
    watchdog.check()
    assert len(reports) == 1


def test_first_steps_and_time_between_steps_are_not_watched(
    watchdog: Watchdog, clock: Clock, reports: list[Any]
) -> None:
    watchdog.begin_step(1)
    clock.now += 10_000.0
    watchdog.check()
    watchdog.end_step()
    take_steps(watchdog, clock, *[1.0] * 9)
    clock.now += 10_000.0  # during an evaluation or a checkpoint
    watchdog.check()
    assert reports == []


def wait_in_a_collective(may_continue: Event) -> None:
    may_continue.wait(30)


def hang(watchdog: Watchdog, may_continue: Event) -> None:
    with watchdog.watch():
        for step in range(1, 7):
            watchdog.begin_step(step)
            watchdog.end_step()
        watchdog.begin_step(7)
        wait_in_a_collective(may_continue)
        watchdog.end_step()


def start(target: Callable[[], None]) -> Thread:
    thread = Thread(target=target)
    thread.start()
    return thread


def test_stall_report_has_stack_in_event_and_log(tmp_path: Path) -> None:
    run, may_continue = RunFolder(tmp_path), Event()
    watchdog = Watchdog(partial(report_stall, run, 3), min_stall_s=0.01, poll_s=0.01)
    with log_to_file(run.log_file):
        thread = start(partial(hang, watchdog, may_continue))
        wait_until(run.events.path.exists, 10, "the report")
        may_continue.set()
        thread.join(10)
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "step_stalled")
    assert event["message"].startswith("Step 7 has taken ")
    assert (event["data"]["rank"], event["data"]["step"]) == (3, 7)
    assert any("wait_in_a_collective" in line for line in event["data"]["stack"])
    assert not any(line.startswith("/") for line in event["data"]["stack"])
    assert "worker 3: step 7 has taken" in run.log_file.read_text()
    assert "wait_in_a_collective" in run.log_file.read_text()


def test_failed_report_does_not_stop_watchdog(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    may_continue = Event()
    watchdog = Watchdog(fail, min_stall_s=0.01, poll_s=0.01)
    thread = start(partial(hang, watchdog, may_continue))
    wait_until(lambda: "the watchdog failed" in caplog.text, 10, "the failure")
    may_continue.set()
    thread.join(10)
    assert not thread.is_alive()


def test_watchdog_stops_with_watched_body(watchdog: Watchdog) -> None:
    def fail() -> None:
        with watchdog.watch():
            raise ValueError("the step failed")

    with pytest.raises(ValueError, match="^the step failed$"):
        fail()
    assert watchdog._is_over.is_set()
