"""Runs as jobs in OpenAI's format."""

import time
from typing import Any

import pytest

from apps.fine_tuning.job_responses import describe_job
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import add_job
from training.run.folder import RunFolder
from training.run.run_record import RunStatus

STEP = dict.fromkeys(("num_steps", "epoch", "loss", "tokens_per_s", "elapsed_s"), 1.0)


@pytest.fixture
def run(layout: StorageLayout) -> RunFolder:
    return add_job(layout, "tiny")


def change_record(run: RunFolder, **changes: Any) -> None:
    """Replace values in run.json, including by values of another release."""
    durable.write_json(run.record_file, {**durable.read_json(run.record_file), **changes})


def add_step(run: RunFolder, step: int, *, age_s: int = 0, remaining_s: float = 60.0) -> None:
    """Record the metrics of a step taken `age_s` seconds ago."""
    figures = {**STEP, "step": step, "trained_tokens": 100 * step, "remaining_s": remaining_s}
    line = {**figures, "created_at": int(time.time()) - age_s}
    durable.append_json_line(run.metrics.path, line)


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_ended_job_reports_tokens_of_last_step(run: RunFolder, status: RunStatus) -> None:
    """Previously, a job that had been paused reported the tokens up to the pause, others none."""
    add_step(run, 3)
    change_record(run, status="paused", trained_tokens=300)
    assert describe_job(run)["trained_tokens"] is None
    add_step(run, 5)
    change_record(run, status="running")
    assert describe_job(run)["trained_tokens"] is None
    change_record(run, status=status)
    assert describe_job(run)["trained_tokens"] == 500


def test_job_ended_before_first_step_reports_no_tokens(run: RunFolder) -> None:
    change_record(run, status="failed")
    assert describe_job(run)["trained_tokens"] is None


def test_estimated_finish_ignores_steps_before_resume(run: RunFolder) -> None:
    now = int(time.time())
    add_step(run, 3, age_s=100)
    change_record(run, status="running", computing_since=now - 20)
    assert describe_job(run)["estimated_finish"] is None
    add_step(run, 4, age_s=10)
    assert describe_job(run)["estimated_finish"] == pytest.approx(now + 50, abs=3)
    add_step(run, 5, age_s=10, remaining_s=1.0)
    finish = describe_job(run)["estimated_finish"]
    assert finish is not None
    assert finish >= now, "the estimated end of an active run is in the past"


def test_metrics_record_time_of_step(run: RunFolder) -> None:
    before = int(time.time())
    run.metrics.add({"step": 1.0})
    (line,) = run.metrics.read()
    assert line["step"] == 1
    assert before <= line["created_at"] <= time.time()
