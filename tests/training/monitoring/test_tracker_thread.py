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


class RecordingTracker:
    """A tracker that records the logged steps, after the test sets `may_continue`."""

    def __init__(self, may_continue: Event | None = None) -> None:
        self.steps: list[int] = []
        self._may_continue = may_continue

    def log(self, figures: Mapping[str, float], step: int) -> None:
        if self._may_continue is not None:
            self._may_continue.wait(30)
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


def test_figures_are_logged_in_order() -> None:
    recorder = RecordingTracker()
    thread = TrackerThread("noted", open_as(recorder))
    log_steps(thread, 300)
    assert close(thread) is None
    assert recorder.steps == list(range(300))


@pytest.mark.parametrize("blocks", ["open", "log"])
def test_unresponsive_tracker_is_disabled_without_blocking(blocks: str) -> None:
    """Previously, it blocked training for as long as its client retried."""
    may_continue = Event()
    recorder = RecordingTracker(may_continue if blocks == "log" else None)
    opened = open_as(recorder, may_continue if blocks == "open" else None)
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
    may_continue.set()


def test_tracker_slower_than_training_is_disabled() -> None:
    may_continue = Event()
    thread = TrackerThread("slow", open_as(RecordingTracker(may_continue)), max_waiting=3)
    log_steps(thread, 3)
    with pytest.raises(
        TrackerOffError, match="^it is slower than the training: 3 steps wait for it$"
    ):
        log_steps(thread, 10)
    may_continue.set()


def test_end_of_training_waits_limited_time() -> None:
    may_continue = Event()
    thread = TrackerThread("slow", open_as(RecordingTracker(may_continue)))
    thread.log({"loss": 1.0}, 1)
    started = time.monotonic()
    reason = close(thread, 0.2)
    assert time.monotonic() - started < 5
    assert reason == "it did not take the last figures within 0.2 s"
    may_continue.set()


def test_blocking_tracker_keeps_metrics_and_emits_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_continue = Event()
    monkeypatch.setattr("training.monitoring.trackers.CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setitem(OPENERS, "wandb", lambda *_: open_as(RecordingTracker(), may_continue)())
    run = RunFolder(tmp_path)
    spec = TrainingSpec(base_model="m", train_file="f", trackers=("wandb",))
    started = time.monotonic()
    with open_trackers(spec, run, 0, is_reporting=True) as trackers:
        journal: Journal = make_journal(run, trackers=trackers)
        journal.record_step(RESULT, Progress(num_shares=2), 3)
    assert time.monotonic() - started < 5
    assert len(run.metrics.read()) == 1
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "tracker_off")
    assert event["message"].startswith("Metrics may be missing in wandb: ")
    may_continue.set()
