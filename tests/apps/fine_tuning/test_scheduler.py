"""Starting queued runs: their order, the resources that they need, and failures to start."""

import asyncio
import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import find_run
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.scheduler import record_waiting_reason
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout, open_storage
from tests.apps.conftest import ROW, NotedJobs, create_run

pytestmark = pytest.mark.anyio


async def test_runs_start_in_order_one_at_a_time(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    first, second = await create_run(queue, file_id), await create_run(queue, file_id, suffix="two")
    await queue.reconcile()
    await queue.reconcile()
    assert jobs.started == [first.path.name]
    assert first.path.name in jobs.commands[f"{first.path.name}-1"]
    first.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [first.path.name, second.path.name]


async def test_runs_start_by_priority_and_two_run_concurrently(
    layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    with closing(RunQueue(layout, jobs, max_concurrent_runs=2)) as queue:
        runs = [
            await create_run(queue, file_id, priority=priority) for priority in (0, 0, 5, -1, 5)
        ]
        for _ in runs:
            await queue.reconcile()
            await queue.reconcile()
            assert len([state for state in jobs.states.values() if state == "active"]) <= 2
            (first, *_) = (job for job, state in jobs.states.items() if state == "active")
            jobs.states[first] = "ended"
            find_run(layout, first.rpartition("-")[0]).update_record(status="succeeded")
    assert jobs.started == [runs[place].path.name for place in (2, 4, 0, 1, 3)]


async def test_queued_job_shows_reason_for_waiting(
    layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    with closing(RunQueue(layout, jobs, max_concurrent_runs=3, reserved_cpus=0.5)) as queue:
        settings = {"num_workers": 1, "cpus_per_worker": 1.0}
        runs = [await create_run(queue, file_id, training=settings) for _ in range(3)]
        small = await create_run(queue, file_id, training={"num_workers": 1})
        await queue.reconcile()
        reported = [run.read_record().waiting_for for run in (*runs, small)]
        assert reported == [
            "its process is being started",
            "waits for 1 CPUs, of which 0.5 are free",
            "number 2 in the queue",
            "number 3 in the queue",
        ]
        assert describe_job(small)["waiting_for"] == "number 3 in the queue"
        runs[0].update_record(status="succeeded")
        jobs.states.clear()
        await queue.reconcile()
    assert jobs.started == [runs[0].path.name, runs[1].path.name]
    assert runs[1].read_record().waiting_for == "its process is being started"


async def test_paused_run_has_no_reason_for_waiting(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.pause(run.path.name)
    record_waiting_reason(run, "number 2 in the queue")  # determined just before the pause
    assert run.read_record().waiting_for is None


async def test_job_command_quotes_path_with_space(
    tmp_path: Path, tiny_model: Path, jobs: NotedJobs
) -> None:
    layout = open_storage(tmp_path / "my data")
    ModelStore(layout).add(tiny_model, "tiny")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW))
    FileStore(layout).add("file-rows", rows.read_bytes(), "rows.jsonl")
    with closing(RunQueue(layout, jobs)) as queue:
        job = await queue.create({"model": "tiny", "training_file": "file-rows"})
        await queue.reconcile()
    assert shlex.split(jobs.commands[f"{job['id']}-1"])[-3:] == [
        str(layout.root),
        job["id"],
        f"{job['id']}-1",
    ]


async def test_job_is_started_after_queue_was_killed_before_start(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    run.update_record(writer="job", job_id=f"{run.path.name}-1", num_starts=1)
    await queue.reconcile()
    assert jobs.started == [run.path.name]


async def test_job_refused_by_cluster_is_started_again(
    queue: RunQueue, jobs: NotedJobs, file_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = await create_run(queue, file_id)
    jobs.refusal = RuntimeError("no agent is available")
    for _ in range(3):
        await queue.reconcile()
    reported = [event["message"] for event in run.events.read() if event["level"] == "warn"]
    assert reported == [
        "The cluster cannot start it at present, trying again: no agent is available"
    ]
    logged = [record for record in caplog.records if "no agent is available" in record.getMessage()]
    assert [(record.levelname, record.exc_info) for record in logged] == [("ERROR", None)]
    jobs.refusal = None
    await queue.reconcile()
    assert jobs.started == [run.path.name]


async def test_run_cancelled_during_reconcile_pass_is_not_started(
    queue: RunQueue,
    jobs: NotedJobs,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = await create_run(queue, file_id)

    def list_nodes() -> list[dict[str, float]]:
        """Cancel the run after the pass has read its record, and before it decides to start it."""
        monkeypatch.undo()
        asyncio.run(queue.cancel(run.path.name))
        return jobs.nodes

    monkeypatch.setattr(jobs, "list_nodes", list_nodes)
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert jobs.commands == {}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_unreadable_settings_of_one_run_do_not_delay_other_runs(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    settings = durable.read_json(run.spec_file)
    run.spec_file.write_text(json.dumps({**settings, "lr_schedule": "of another version"}))
    await queue.reconcile()
    assert jobs.started == [other.path.name]
    assert "its settings cannot be read" in str(run.read_record().waiting_for)
    run.spec_file.write_text(json.dumps(settings))
    other.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [other.path.name, run.path.name]


async def test_active_run_with_unreadable_settings_counts_as_active(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.spec_file.write_text("{")
    await queue.reconcile()
    assert jobs.started == [run.path.name]
    assert other.read_record().waiting_for == "number 1 in the queue"


async def test_run_that_needs_lost_node_waits_and_does_not_delay_other_runs(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    jobs.nodes = [{"CPU": 8.0}, {"CPU": 2.0}]
    large = await create_run(queue, file_id, training={"num_workers": 4, "cpus_per_worker": 2.0})
    small = await create_run(queue, file_id)
    jobs.nodes = [{"CPU": 2.0}]
    await queue.reconcile()
    assert jobs.started == [small.path.name]
    assert "too few resources at present: 4 workers" in str(large.read_record().waiting_for)
    jobs.nodes = [{"CPU": 8.0}, {"CPU": 2.0}]
    small.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [small.path.name, large.path.name]
