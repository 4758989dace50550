"""Runs as HTML, with hostile values escaped."""

import time
from typing import Any

import pytest

from apps.client.resources import Event, Job, Progress
from apps.ui.runs import run_markup
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def make_job(**changes: Any) -> Job:
    values = {"id": "ftjob-1", "status": "running", "model": "base", "training_file": "file-1"}
    values["training_filename"] = "rows.jsonl"
    return Job.model_validate({**values, "created_at": 1_700_000_000, **changes})


def test_active_run_shows_progress() -> None:
    progress = Progress(step=3, num_steps=12, loss=1.23456, tokens_per_s=1234.5, remaining_s=75)
    html = run_markup.render_run(make_job(progress=progress), "Training")
    for part in ("3 of 12", "1.235", "1,234", "1 min 15 s", 'value="0.2500"', "rows.jsonl"):
        assert part in html
    assert 'id="run-status" class="ts-badge ts-running">Running' in html
    assert "chat-with-it" not in html


def test_run_of_a_loop_without_a_number_of_steps_shows_its_figures() -> None:
    html = run_markup.render_run(make_job(progress=Progress(step=3, loss=1.5)), "Training")
    assert "1.500" in html
    assert "3 of" not in html
    assert "<progress" not in html
    assert "Tokens/s" not in html


def test_run_before_first_step_shows_its_stage() -> None:
    html = run_markup.render_run(make_job(status="queued"), "Starting workers")
    assert '<p id="run-stage" class="ts-stage">Starting workers</p>' in html
    assert "<progress" not in html


def test_succeeded_run_links_to_chat() -> None:
    job = make_job(status="succeeded", fine_tuned_model="base/tuned 1")
    assert 'href="./chat?model=base/tuned%201"' in run_markup.render_run(job, "")


def test_run_list_links_to_each_run_and_marks_selected_run() -> None:
    jobs = [make_job(id="ftjob-2"), make_job(id="ftjob-1", status="failed")]
    html = run_markup.render_run_list(jobs, "ftjob-1")
    assert 'href="./runs?run=ftjob-2"' in html
    assert 'data-run="ftjob-1" aria-current=true' in html
    assert html.count("aria-current") == 1


def test_metrics_events_are_not_shown() -> None:
    events = [
        Event(id="1", created_at=0, message="Training started"),
        Event(id="2", created_at=0, message="step 1", type="metrics"),
    ]
    html = run_markup.render_events(events)
    assert "Training started" in html
    assert "step 1" not in html


def test_duration_ends_with_run() -> None:
    assert run_markup.measure_duration(make_job(started_at=100, finished_at=160)) == 60
    assert run_markup.measure_duration(make_job(status="queued")) == 0
    assert 4 < run_markup.measure_duration(make_job(started_at=int(time.time()) - 5)) < 8


@pytest.mark.parametrize(
    "html",
    [
        run_markup.render_events([Event(id="1", created_at=0, level=HOSTILE, message=HOSTILE)]),
        run_markup.render_run_list(
            [make_job(id=HOSTILE, model=HOSTILE, training_filename=HOSTILE)], ""
        ),
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


def test_finished_run_links_to_comparison_with_its_base() -> None:
    job = make_job(status="succeeded", model="base", fine_tuned_model="tuned", training={})
    assert 'href="./compare?models=base,tuned">Compare with base</a>' in run_markup.render_run(
        job, ""
    )
    classifier = make_job(
        status="succeeded",
        fine_tuned_model="mood",
        training={"task": "sequence_classification"},
    )
    assert "compare" not in run_markup.render_run(classifier, "")
