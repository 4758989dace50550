import json
import logging
import math
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from training.engine import StepResult
from training.evaluation import Evaluation
from training.monitoring.journal import Journal, compute_perplexity
from training.monitoring.trackers import (
    OPENERS,
    TrackerError,
    check_trackers,
    identify_run,
    open_trackers,
)
from training.place import Place
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.run.run_record import RunRecord
from training.spec import TrainingSpec
from training.task import ConfusionMatrix

SPEC = TrainingSpec(base_model="m", train_file="f")
CPU = torch.device("cpu")
RESULT = StepResult(
    loss=2.5,
    learning_rate=1e-4,
    grad_norm=0.7,
    num_targets=30,
    num_tokens=100,
    took_s=0.5,
    was_skipped=False,
    peak_memory_bytes=1 << 20,
    was_asked_to_stop=False,
)
KEYS = [
    "step",
    "num_steps",
    "epoch",
    "loss",
    "learning_rate",
    "grad_norm",
    "learned_tokens",
    "tokens",
    "trained_tokens",
    "tokens_per_s",
    "learned_tokens_per_s",
    "remaining_s",
    "elapsed_s",
    "peak_memory_bytes",
    "created_at",
]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def make_journal(
    run: RunFolder, rank: int = 0, trackers: Any = (), num_steps: int = 200
) -> Journal:
    return Journal(run, Place(rank, 2, CPU), trackers, num_steps)


def test_metrics_line_has_figures_of_step(run: RunFolder) -> None:
    progress = Progress(num_shares=2, step=9, epoch=1, step_in_epoch=4, trained_tokens=900)
    make_journal(run).record_step(RESULT, progress.take_step(RESULT, elapsed_s=0.75), 8)
    (line,) = run.metrics.read()
    assert list(line) == KEYS
    assert time.time() - line.pop("created_at") < 60
    assert line == {
        "step": 10,
        "num_steps": 200,
        "epoch": 1.625,
        "loss": 2.5,
        "learning_rate": 1e-4,
        "grad_norm": 0.7,
        "learned_tokens": 30,
        "tokens": 100,
        "trained_tokens": 1000,
        "tokens_per_s": 200.0,
        "learned_tokens_per_s": 60.0,
        "remaining_s": 95.0,
        "elapsed_s": 0.75,
        "peak_memory_bytes": 1 << 20,
    }


def test_throughput_is_average_of_last_fifty_steps(run: RunFolder) -> None:
    journal = make_journal(run)
    progress = Progress(num_shares=2)
    for took_s in [10.0] * 20 + [1.0] * 30 + [0.25] * 20:
        progress = progress.take_step(replace(RESULT, took_s=took_s), took_s)
        journal.record_step(replace(RESULT, took_s=took_s), progress, 70)
    lines = run.metrics.read()
    assert lines[0]["tokens_per_s"] == 10
    assert lines[49]["tokens_per_s"] == round(50 * 100 / (20 * 10 + 30), 1)
    assert lines[69]["tokens_per_s"] == round(50 * 100 / (30 + 5), 1)
    assert lines[69]["learned_tokens_per_s"] == round(50 * 30 / (30 + 5), 1)
    assert lines[69]["remaining_s"] == pytest.approx(35 / 50 * 130)
    assert lines[69]["elapsed_s"] == 20 * 10 + 30 + 5


def test_remaining_time_is_zero_after_last_step(run: RunFolder) -> None:
    progress = Progress(num_shares=2, step=199, step_in_epoch=7).take_step(RESULT, 1.0)
    make_journal(run).record_step(RESULT, progress, 8)
    (line,) = run.metrics.read()
    assert (line["remaining_s"], line["epoch"]) == (0, 1.0)


def test_evaluation_is_only_on_line_of_its_step(run: RunFolder) -> None:
    journal = make_journal(run)
    progress = Progress(num_shares=2)
    for step in range(1, 5):
        progress = progress.take_step(RESULT, 0.5)
        if step % 2 == 0:
            progress = progress.evaluate(1.0 + 1 / step)
        journal.record_step(RESULT, progress, 4)
    lines = run.metrics.read()
    assert [line.get("eval_loss") for line in lines] == [None, 1.5, None, 1.25]
    assert lines[3]["eval_perplexity"] == pytest.approx(math.exp(1.25))
    assert list(lines[1]) == [*KEYS[:-1], "eval_loss", "eval_perplexity", KEYS[-1]]
    assert "eval_perplexity" not in lines[2]


def test_evaluation_of_classifier_has_metrics_and_no_perplexity(run: RunFolder) -> None:
    journal = Journal(run, Place(0, 1, CPU), (), 4, has_perplexity=False)
    matrix = ConfusionMatrix(("no", "yes"), ((3, 1), (0, 2)))
    journal.record_evaluation(1, Evaluation(0.5, {"accuracy": 0.75}, matrix))
    progress = Progress(num_shares=1).take_step(RESULT, 0.5).evaluate(0.5, {"accuracy": 0.75})
    journal.record_step(RESULT, progress, 4)
    assert run.events.read()[0]["message"] == "Step 1: validation loss 0.5000, accuracy 0.7500"
    (line,) = run.metrics.read()
    assert line["eval_accuracy"] == 0.75
    assert "eval_perplexity" not in line
    (found,) = run.evaluations.read_newest(1)
    assert found.confusion_matrix == matrix


def test_perplexity_is_finite() -> None:
    assert compute_perplexity(0.0) == 1
    assert compute_perplexity(math.log(17)) == pytest.approx(17)
    assert math.isfinite(compute_perplexity(1e9))


def test_only_rank_0_records(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(num_shares=2).take_step(RESULT, 0.5)
    with caplog.at_level(logging.INFO), open_trackers(SPEC, run, 0, is_reporting=False) as trackers:
        assert trackers == []
        journal = make_journal(run, rank=1, trackers=trackers)
        journal.log_event("something")
        journal.record_step(replace(RESULT, was_skipped=True), progress, 4)
    assert list(run.path.iterdir()) == []
    assert caplog.messages == []


def test_event_is_logged(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        make_journal(run).log_event("Resuming after step 3 of 9", step=3)
    (event,) = run.events.read()
    assert (event["message"], event["data"], event["level"]) == (
        "Resuming after step 3 of 9",
        {"step": 3},
        "info",
    )
    assert caplog.messages == ["Resuming after step 3 of 9"]


def test_skipped_step_emits_event_and_valid_json_line(run: RunFolder) -> None:
    progress = Progress(num_shares=2).take_step(RESULT, 0.5)
    make_journal(run).record_step(
        replace(RESULT, was_skipped=True, grad_norm=math.inf), progress, 4
    )
    (event,) = run.events.read()
    assert event["level"] == "warn"
    assert event["message"].startswith("Step 1 was skipped: its gradients were not finite")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    (line,) = run.metrics.path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["step"] == 1


def read_tensorboard(folder: Path) -> list[Any]:
    """Read TensorBoard's events in the order in which they were written."""
    from tensorboardX.proto.event_pb2 import Event

    def read_records(content: bytes) -> Iterator[bytes]:
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield content[12 : 12 + length]  # after the checksum of the length
            content = content[12 + length + 4 :]

    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    return [
        Event.FromString(record) for file in files for record in read_records(file.read_bytes())
    ]


def list_scalars(events: list[Any]) -> dict[str, list[tuple[int, float]]]:
    scalars: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars


def test_tensorboard_has_curve_of_each_figure(run: RunFolder) -> None:
    progress = Progress(num_shares=2)
    with open_trackers(SPEC, run, 0, is_reporting=True) as trackers:
        journal = make_journal(run, trackers=trackers)
        for loss in (2.5, 2.25, 2.0):
            result = replace(RESULT, loss=loss)
            progress = progress.take_step(result, 0.5)
            if loss == 2.0:
                progress = progress.evaluate(1.5)
            journal.record_step(result, progress, 3)
    scalars = list_scalars(read_tensorboard(run.path / "tensorboard"))
    keys_without_curve = {"step", "num_steps", "created_at"}
    assert set(scalars) == {*KEYS, "eval_loss", "eval_perplexity"} - keys_without_curve
    assert scalars["loss"] == [(1, 2.5), (2, 2.25), (3, 2.0)]
    assert scalars["eval_loss"] == [(3, 1.5)]


def test_tensorboard_session_hides_repeated_steps(run: RunFolder) -> None:
    """TensorBoard drops earlier events at or after the first step of a new session."""
    folder = run.path / "tensorboard"
    for first_step, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        for earlier in folder.glob("*"):  # file names contain the start time in seconds
            earlier.rename(folder / "events.out.tfevents.1.host")
        with open_trackers(SPEC, run, first_step, is_reporting=True) as trackers:
            for step in steps:
                trackers[0].log({"loss": 1.0}, step)
    events = read_tensorboard(folder)
    starts = [event.step for event in events if event.HasField("session_log")]
    assert starts[-1] == 3
    assert [step for step, _ in list_scalars(events)["loss"]] == [1, 2, 3, 3, 4]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_tracker_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    spec = TrainingSpec.model_validate({**SPEC.model_dump(), "trackers": [name]})
    with pytest.raises(
        TrackerError,
        match=rf"^trackers has '{name}', which is not installed here: "
        rf"pip install 'tuneserve\[{name}\]'$",
    ):
        check_trackers(spec)
    check_trackers(SPEC)


@pytest.mark.parametrize("breaks", ["open", "log", "close"])
def test_failing_tracker_does_not_fail_run(
    breaks: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at(place: str) -> None:
        if place == breaks:
            raise ConnectionError("no route to host")

    class FailingTracker:
        def log(self, figures: Any, step: int) -> None:
            fail_at("log")

    @contextmanager
    def open_failing_tracker(*_: Any) -> Iterator[Any]:
        fail_at("open")
        yield FailingTracker()
        fail_at("close")

    monkeypatch.setitem(OPENERS, "mlflow", open_failing_tracker)
    spec = SPEC.model_copy(update={"trackers": ("mlflow",)})
    with open_trackers(spec, run, 0, is_reporting=True) as opened:
        make_journal(run, trackers=opened).record_step(RESULT, Progress(num_shares=2), 3)
    assert len(run.metrics.read()) == 1
    assert (run.path / "tensorboard").is_dir()
    messages = [event["message"] for event in run.events.read()]
    assert all("no route to host" in message for message in messages)
    assert len(messages) == (breaks != "close"), "a failure after the last step emits no event"


def test_exception_of_body_reaches_trackers_and_caller(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BaseException] = []
    is_open = Event()

    @contextmanager
    def open_recording_tracker(*_: Any) -> Iterator[Any]:
        try:
            is_open.set()
            yield object()
        except ValueError as exc:
            seen.append(exc)
            raise

    monkeypatch.setitem(OPENERS, "wandb", open_recording_tracker)
    spec = SPEC.model_copy(update={"trackers": ("wandb",)})

    def fail_step() -> None:
        with open_trackers(spec, run, 0, is_reporting=True):
            assert is_open.wait(10)
            raise ValueError("the step failed")

    with pytest.raises(ValueError, match="^the step failed$"):
        fail_step()
    assert len(seen) == 1


def test_identity_of_tracked_run_is_kept_after_resume(tmp_path: Path) -> None:
    def identify(folder: str, created_at: int) -> str:
        run = RunFolder(tmp_path / folder)
        run.create(SPEC, RunRecord(id="my run", created_at=created_at))
        run.update_record(status="paused")
        return identify_run(run)

    assert identify("a", 5) == identify("b", 5)
    assert identify("a", 5) != identify("c", 6), "a later run in a folder of the same name"
