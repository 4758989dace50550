"""A tracker in a separate thread, which affects training only by its report."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.training.monitoring.test_journal import RESULT, make_journal
from tests.waiting import wait_until
from training.monitoring.journal import Journal
from training.monitoring.tracker_thread import Tracker, TrackerOffError, TrackerThread
from training.monitoring.trackers import OPENERS, open_trackers
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.spec import TrainingSpec


class Noted:
    """A tracker that records the logged steps, after the test sets `may_go_on`."""

    def __init__(self, may_go_on: Event | None = None) -> None:
        self.steps: list[int] = []
        self._may_go_on = may_go_on

    def log(self, figures: Mapping[str, float], step: int) -> None:
        if self._may_go_on is not None:
            self._may_go_on.wait(30)
        self.steps.append(step)


def open_as(tracker: Tracker, may_open: Event | None = None) -> Any:
    @contextmanager
    def open_tracker() -> Iterator[Tracker]:
        if may_open is not None:
            may_open.wait(30)
        yield tracker

    return open_tracker


def log_steps(thread: TrackerThread, num_steps: int) -> None:
    for step in range(num_steps):
        thread.log({"loss": 1.0}, step)


def close(thread: TrackerThread, timeout_s: float = 10.0) -> str | None:
    thread.request_close((None, None, None))
    return thread.join(timeout_s)


def test_every_figure_arrives_in_order() -> None:
    noted = Noted()
    thread = TrackerThread("noted", open_as(noted))
    log_steps(thread, 300)
    assert close(thread) is None
    assert noted.steps == list(range(300))


@pytest.mark.parametrize("blocks", ["open", "log"])
def test_a_tracker_that_does_not_answer_is_switched_off_and_holds_nobody_up(blocks: str) -> None:
    """Previously, it blocked training for as long as its client retried."""
    may_go_on = Event()
    noted = Noted(may_go_on if blocks == "log" else None)
    opened = open_as(noted, may_go_on if blocks == "open" else None)
    thread = TrackerThread("stuck", opened, call_timeout_s=0.2)
    started = time.monotonic()
    thread.log({"loss": 1.0}, 1)
    assert time.monotonic() - started < 0.15

    reasons: list[str] = []

    def is_off() -> bool:
        try:
            thread.log({"loss": 1.0}, 2)
        except TrackerOffError as exc:
            reasons.append(str(exc))
        return bool(reasons)

    wait_until(is_off, 10, "the tracker to be switched off")
    assert reasons == ["it has not answered for 0.2 s"]
    assert close(thread, 0.1) is None, "it was reported already"
    may_go_on.set()


def test_a_tracker_that_is_slower_than_the_training_is_switched_off() -> None:
    may_go_on = Event()
    thread = TrackerThread("slow", open_as(Noted(may_go_on)), max_waiting=3)
    log_steps(thread, 3)
    with pytest.raises(TrackerOffError, match="slower than the training: 3 steps wait for it"):
        log_steps(thread, 10)
    may_go_on.set()


def test_the_end_of_a_training_waits_a_limited_time() -> None:
    may_go_on = Event()
    thread = TrackerThread("slow", open_as(Noted(may_go_on)))
    thread.log({"loss": 1.0}, 1)
    started = time.monotonic()
    reason = close(thread, 0.2)
    assert time.monotonic() - started < 5
    assert reason == "it did not take the last figures within 0.2 s"
    may_go_on.set()


def test_a_tracker_that_blocks_leaves_the_run_its_figures_and_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = Event()
    monkeypatch.setattr("training.monitoring.trackers.CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setitem(OPENERS, "wandb", lambda *_: open_as(Noted(), may_go_on)())
    run = RunFolder(tmp_path)
    spec = TrainingSpec(base_model="m", train_file="f", trackers=("wandb",))
    started = time.monotonic()
    with open_trackers(spec, run, 0, speaks=True) as trackers:
        journal: Journal = make_journal(run, trackers=trackers)
        journal.record_step(RESULT, Progress(num_shares=2), 3)
    assert time.monotonic() - started < 5
    assert len(run.metrics.read()) == 1
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "tracker_off")
    assert event["message"].startswith("Metrics may be missing in wandb: ")
    may_go_on.set()
