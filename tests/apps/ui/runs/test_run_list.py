"""The table of runs."""

from typing import Any

from apps.client.resources import Job
from apps.ui.runs.run_list import PAGE_SIZE, read_run_list, render_row
from apps.ui.runs.sparklines import Sparkline, Sparklines
from apps.ui.runs.view_request import ViewRequest
from apps.ui.tab_state import Content
from tests.apps.stub_api import StubApi, ask
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def make_job(**changes: Any) -> Job:
    values = {"id": "ftjob-1", "status": "running", "model": "base", "training_file": "file-1"}
    return Job.model_validate({**values, "created_at": 1_700_000_000, **changes})


def read(api: StubApi, **asked: Any) -> Content:
    request = ViewRequest(**asked)
    return ask(api, lambda client: read_run_list(client, request, Sparklines(), (1.0, 9.0)))


def test_row_shows_figures_and_links_to_the_run() -> None:
    job = make_job(
        user_provided_suffix="mine",
        started_at=1_700_000_100,
        finished_at=1_700_000_190,
        progress={"step": 5, "num_steps": 20, "loss": 1.23456},
    )
    html = render_row(job, Sparkline((3.0, 2.0), "f1_macro", 0.875))
    for part in (
        *('href="./runs?run=ftjob-1"', ">mine</a>", "Running", "base", "file-1", "25%", "1.235"),
        *("0.875", "f1 macro", "<polyline", 'datetime="2023-11-14T22:15:00Z"', "1 min 30 s"),
        'aria-label="Select mine"',
    ):
        assert part in html


def test_losses_are_named() -> None:
    job = make_job(progress={"step": 5, "num_steps": 20, "loss": 1.23456})
    html = render_row(job, Sparkline((3.0, 2.0), "loss", 0.875))
    assert 'data-label="Training loss" class="ts-training-loss"' in html
    assert '0.875 <span class="ts-muted">loss</span>' in html


def test_waiting_run_is_not_shown_as_started() -> None:
    html = render_row(make_job(status="queued", waiting_for="number 2 in the queue"))
    assert "created <time" in html
    assert "number 2 in the queue" in html


def test_waiting_extension_shows_its_reason_and_not_the_steps_of_the_extended_run() -> None:
    progress = {"step": 32, "loss": 1.5}
    changes = {"extended_from": "ftjob-0", "progress": progress}
    html = render_row(make_job(status="queued", waiting_for="number 2 in the queue", **changes))
    assert "number 2 in the queue" in html
    assert "step 32" not in html
    assert "step 32" in render_row(make_job(status="running", **changes))


def test_run_that_waits_to_be_resumed_shows_its_reason_and_its_duration() -> None:
    changes = {"started_at": 1_700_000_100, "progress": {"step": 32, "loss": 1.5}}
    html = render_row(make_job(status="queued", waiting_for="number 2 in the queue", **changes))
    assert "number 2 in the queue" in html
    assert "step 32" not in html
    assert 'data-since="1700000100"' in html


def test_run_that_stopped_early_is_complete() -> None:
    html = render_row(make_job(status="succeeded", progress={"step": 32, "num_steps": 48}))
    assert 'value="1.000"' in html
    assert "stopped early at step 32 of 48" in html
    assert "67%" not in html


def test_hostile_values_are_escaped() -> None:
    job = make_job(
        id=HOSTILE, model=HOSTILE, status=HOSTILE, training_filename=HOSTILE, waiting_for=HOSTILE
    )
    assert_escaped(render_row(job, Sparkline((1.0, 2.0), HOSTILE, 1.0)))


def test_one_page_of_runs_is_requested(api: StubApi) -> None:
    for number in range(PAGE_SIZE + 3):
        api.add_job(f"ftjob-{number:03d}", "succeeded")
    first = read(api)
    ids = list(first.lists["runs"])
    assert (len(ids), first.values["has_more"], first.values["interval_s"]) == (PAGE_SIZE, True, 9)
    older = read(api, after=ids[-1])
    assert older.lists["runs"] == ["ftjob-002", "ftjob-001", "ftjob-000"]
    assert older.values["has_more"] is False


def test_runs_are_filtered_by_status_and_text(api: StubApi) -> None:
    api.add_job("ftjob-1", "failed", user_provided_suffix="Ovens")
    api.add_job("ftjob-2", "running")
    assert read(api, status="failed").lists["runs"] == ["ftjob-1"]
    assert read(api, search="oven").lists["runs"] == ["ftjob-1"]
    assert "No run matches" in read(api, search="nothing").parts["list-empty"]
    assert read(api).values["interval_s"] == 1


def test_without_runs_there_is_a_link_to_start_one(api: StubApi) -> None:
    assert '<a href="./">Start a fine-tune</a>' in read(api).parts["list-empty"]
