"""Runs as HTML, with hostile values escaped."""

import re
import time
from typing import Any

import pytest

from apps.client.resources import Event, Job, Progress
from apps.ui.runs import run_markup
from apps.ui.runs.merging import Merge
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def make_job(**changes: Any) -> Job:
    values = {"id": "ftjob-1", "status": "running", "model": "base", "training_file": "file-1"}
    values["training_filename"] = "rows.jsonl"
    return Job.model_validate({**values, "created_at": 1_700_000_000, **changes})


def test_active_run_shows_progress() -> None:
    progress = Progress(step=3, num_steps=12, loss=1.23456, tokens_per_s=1234.5, remaining_s=75)
    html = run_markup.render_run(make_job(progress=progress, started_at=1_700_000_100), "Training")
    for part in ("3 of 12", "1.235", "1,234", "1 min 15 s", 'value="0.2500"', "rows.jsonl"):
        assert part in html
    assert 'id="run-status" class="ts-badge ts-running">Running' in html
    assert 'started <time datetime="2023-11-14T22:15:00Z"' in html


def test_run_of_a_loop_without_a_number_of_steps_shows_its_figures() -> None:
    html = run_markup.render_run(make_job(progress=Progress(step=3, loss=1.5)), "Training")
    assert "1.500" in html
    assert "3 of" not in html
    assert "<progress" not in html
    assert "Tokens/s" not in html


@pytest.mark.parametrize(
    ("status", "words"), [("queued", "waiting since <time"), ("validating_files", "created <time")]
)
def test_run_that_has_not_started_says_so(status: str, words: str) -> None:
    html = run_markup.render_run(make_job(status=status), "Waiting: 2 CPUs")
    assert words in html
    assert "started" not in html
    assert '<p id="run-stage" class="ts-stage">Waiting: 2 CPUs</p>' in html
    assert "<progress" not in html


def test_duration_is_from_start_to_end_also_while_paused() -> None:
    """It may not decrease when a run is paused, resumed, or queued again."""
    assert run_markup.render_duration(make_job(started_at=100, finished_at=160)) == "1 min"
    assert run_markup.render_duration(make_job(started_at=160, finished_at=100)) == "0 s"
    assert run_markup.render_duration(make_job(status="queued")) == ""
    for status in ("running", "paused", "queued"):
        html = run_markup.render_duration(make_job(status=status, started_at=100))
        assert html == '<span data-since="100"></span>'


def test_queued_extension_shows_no_figures_of_time() -> None:
    """It has the progress of the run that it extends, and nothing has started."""
    progress = Progress(step=32, num_steps=48, loss=0.5, tokens_per_s=1234.5)
    extended = make_job(status="queued", progress=progress, started_at=None)
    html = run_markup.render_run(extended, "Waiting: 2 CPUs")
    assert "32 of 48" in html
    assert "Tokens/s" not in html
    assert "Duration" not in html
    resumed = make_job(status="queued", progress=progress, started_at=100)
    html = run_markup.render_run(resumed, "Waiting: 2 CPUs")
    assert "Tokens/s" in html
    assert "Duration" in html


def test_run_that_stopped_early_is_complete() -> None:
    progress = Progress(step=32, num_steps=48)
    html = run_markup.render_run(make_job(status="succeeded", progress=progress), "")
    assert 'value="1.0000"' in html
    assert "stopped early at step 32 of 48<" in html
    for status, step in (("succeeded", 48), ("failed", 32), ("running", 32)):
        job = make_job(status=status, progress=Progress(step=step, num_steps=48))
        html = run_markup.render_run(job, "")
        assert "stopped early" not in html
        assert f"{step} of 48" in html


def list_actions(html: str) -> list[str]:
    return re.findall(r'id="(\w+)-button"', html)


@pytest.mark.parametrize(
    ("changes", "actions"),
    [
        ({"status": "running"}, ["pause", "cancel"]),
        ({"status": "paused", "resumable": True}, ["resume", "cancel"]),
        ({"status": "failed", "resumable": True}, ["resume", "again", "delete"]),
        ({"status": "succeeded"}, ["again", "delete"]),
    ],
)
def test_buttons_are_those_that_the_status_allows(
    changes: dict[str, Any], actions: list[str]
) -> None:
    html = run_markup.render_buttons(make_job(**changes), [], {"jobs.write"}, None)
    assert list_actions(html) == actions
    assert run_markup.render_buttons(make_job(**changes), [], {"jobs.read"}, None) == ""


@pytest.mark.parametrize(
    ("training", "step", "data"),
    [
        ({"epochs": 3, "max_steps": None}, 30, 'data-limit="epochs" data-epochs="3">'),
        (
            {"epochs": 3, "max_steps": 40},
            30,
            'data-limit="epochs" data-epochs="3" data-steps="40">',
        ),
        (
            {"epochs": 3, "max_steps": 30},
            30,
            'data-limit="max_steps" data-epochs="3" data-steps="30">',
        ),
    ],
)
def test_succeeded_run_is_extended_by_what_limits_it(
    training: dict[str, Any], step: int, data: str
) -> None:
    job = make_job(status="succeeded", training=training, progress=Progress(step=step))

    def render(has_checkpoints: bool) -> str:
        return run_markup.render_buttons(
            job, [], {"jobs.write"}, None, has_checkpoints=has_checkpoints
        )

    assert list_actions(render(has_checkpoints=False)) == ["again", "delete"]
    html = render(has_checkpoints=True)
    assert list_actions(html) == ["extend", "again", "delete"]
    assert data in html


@pytest.mark.parametrize("status", ["failed", "cancelled", "paused", "running"])
def test_other_runs_are_not_extended(status: str) -> None:
    job = make_job(status=status, training={"epochs": 3})
    html = run_markup.render_buttons(job, [], {"jobs.write"}, None, has_checkpoints=True)
    assert "extend-button" not in html


def test_run_links_to_the_one_that_it_extends() -> None:
    assert "extended-run" not in run_markup.render_run(make_job(), "Training")
    assert_escaped(run_markup.render_run(make_job(extended_from=HOSTILE), "Training"))
    html = run_markup.render_run(make_job(extended_from="ftjob-0"), "Training")
    assert 'href="./runs?run=ftjob-0" title="ftjob-0"' in html
    assert 'id="extended-run" data-go="run" data-run="ftjob-0"' in html


def test_run_can_be_started_again_with_changes() -> None:
    job = make_job(id="ftjob-1", status="failed")
    assert 'href="./?from=ftjob-1"' in run_markup.render_buttons(job, [], {"jobs.write"}, None)


def test_adapter_can_be_merged_once() -> None:
    job = make_job(status="succeeded")
    merges = (Merge("m"), Merge("m", is_running=True), Merge("m", exists=True), None)
    shown = [run_markup.render_buttons(job, [], {"jobs.write"}, merge) for merge in merges]
    assert ["merge-button" in html for html in shown] == [True, True, False, False]
    assert "disabled>Merging…" in shown[1]


def test_requested_cancellation_is_shown_until_it_ends_or_times_out() -> None:
    asked = Event(id="1", code="cancel_requested", created_at=int(time.time()))
    late = asked.model_copy(update={"created_at": int(time.time()) - 60})
    queued = Event(id="2", code="queued", created_at=int(time.time()))
    assert run_markup.has_cancel_request([asked])
    assert not run_markup.has_cancel_request([queued, asked])
    assert not run_markup.has_cancel_request([late])
    html = run_markup.render_buttons(make_job(), [asked], {"jobs.write"}, None)
    assert html.count("disabled") == 2
    assert "Cancelling…</button>" in html


def test_requested_pause_is_shown_until_it_is_made() -> None:
    events = [Event(id="1", code="pause_requested")]
    html = run_markup.render_buttons(make_job(), events, {"jobs.write"}, None)
    assert "disabled>Pausing…" in html


def test_stage_is_what_a_run_waits_for_or_does() -> None:
    events = [Event(id="2", type="metrics", message="step"), Event(id="1", message="Saving")]
    describe = run_markup.describe_stage
    assert describe(make_job(waiting_for="2 CPUs"), events) == "Waiting: 2 CPUs"
    assert describe(make_job(status="paused"), events).startswith("Paused; it resumes")
    assert describe(make_job(), events) == "Saving"
    assert describe(make_job(), []) == "Running"
    queued = [Event(id="1", message="Queued", code="queued")]
    assert describe(make_job(), queued) == "Starting…"
    assert describe(make_job(status="queued"), queued) == "Queued"
    lost = [Event(id="2", message="Interrupted: it resumes", code="queued", level="warn")]
    assert describe(make_job(), lost) == "Interrupted: it resumes"


@pytest.mark.parametrize(
    "html",
    [
        run_markup.render_event(Event(id="1", created_at=0, level=HOSTILE, message=HOSTILE)),
        run_markup.render_buttons(make_job(id=HOSTILE, status="failed"), [], {"jobs.write"}, None),
        run_markup.render_run(
            make_job(
                id=HOSTILE,
                status="succeeded",
                fine_tuned_model=HOSTILE,
                user_provided_suffix=HOSTILE,
                training_filename=HOSTILE,
                error={"message": HOSTILE},
            ),
            HOSTILE,
        ),
    ],
)
def test_hostile_content_of_runs_is_escaped(html: str) -> None:
    assert_escaped(html)
