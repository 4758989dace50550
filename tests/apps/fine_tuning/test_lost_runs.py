"""Runs whose process ended without recording how."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from apps.fine_tuning.cluster.job_runner import JobState
from apps.fine_tuning.index.run_lookup import name_model
from apps.fine_tuning.queue import RunQueue
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, copy_model, create_run, lose_run
from tests.apps.fine_tuning.conftest import list_messages
from training import launch
from training.run.lease import acquire_lease

pytestmark = pytest.mark.anyio


async def test_run_killed_after_publishing_its_model_succeeds(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    model_id = name_model(run.read_record())
    lineage = {"run_id": run.path.name}
    durable.write_json(copy_model(tiny_model, run.model) / "lineage.json", lineage)
    ModelStore(layout).publish(run.model, model_id)
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "succeeded"
    assert run.read_record().model_id == model_id
    assert ModelStore(layout).resolve("latest").id == model_id


async def test_foreign_model_with_same_id_does_not_count_as_model_of_run(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    ModelStore(layout).add(tiny_model, name_model(run.read_record()))
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "queued"
    assert ModelStore(layout).resolve("latest").id == "tiny"


@pytest.mark.parametrize(
    ("state", "logs", "reason"),
    [
        ("ended", "", "its process ended with signal 9 (SIGKILL). It resumes"),
        ("ended", "a\nb", "its process ended with signal 9 (SIGKILL); its last output: b. It"),
        ("unknown", "", "the Ray cluster that its process belonged to has ended. It resumes"),
    ],
)
async def test_run_whose_process_ended_is_queued_at_same_position(
    queue: RunQueue, jobs: NotedJobs, file_id: str, state: Any, logs: str, reason: str
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    jobs.logs = logs
    jobs.exits[f"{run.path.name}-1"] = "its process ended with signal 9 (SIGKILL)"
    jobs.states[f"{run.path.name}-1"] = state
    await queue.reconcile()
    record = run.read_record()
    assert (record.status, record.num_lost, record.error) == ("queued", 1, None)
    event = run.events.read()[-1]
    assert event["level"] == "warn"
    assert event["message"].startswith(f"Interrupted: {reason}")
    assert list(jobs.commands) == [f"{run.path.name}-1", f"{run.path.name}-2"]
    assert other.read_record().status == "queued"


async def test_interrupted_event_states_that_no_reason_was_recorded(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await lose_run(queue, jobs, run)
    last_message = run.events.read()[-1]["message"]
    assert "its process ended without a reason being recorded" in last_message


async def test_run_lost_repeatedly_without_completed_step_fails(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    for _ in range(3):
        await lose_run(queue, jobs, run, step=7)
        assert run.read_record().status == "queued"
    await lose_run(queue, jobs, run, step=8)  # with progress since the last loss
    for _ in range(2):
        await lose_run(queue, jobs, run, step=8)
        assert run.read_record().status == "queued"
    jobs.logs = "Killed"
    await lose_run(queue, jobs, run, step=8)
    record = run.read_record()
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.code == "interrupted"
    assert "Killed; it did so 4 times without completing a step" in record.error.message
    assert run.events.read()[-1]["level"] == "error"
    assert jobs.started == [run.path.name] * 7


async def test_run_lost_repeatedly_at_earlier_steps_fails(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    for step in (97, 95, 96):
        await lose_run(queue, jobs, run, step)
        assert run.read_record().status == "queued"
    await lose_run(queue, jobs, run, 97)
    assert run.read_record().status == "failed"


async def test_run_whose_process_outlives_its_job_is_not_started_twice(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    jobs.states[f"{run.path.name}-1"] = "unknown"
    with acquire_lease(run):
        await queue.reconcile()
        assert run.read_record().writer == "job"
    await queue.reconcile()
    await queue.reconcile()
    assert list(jobs.commands) == [f"{run.path.name}-1", f"{run.path.name}-2"]


async def test_run_lost_after_pause_request_is_paused(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.pause(run.path.name)
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "paused"


async def test_run_failed_and_resumed_during_reconcile_pass_is_not_lost(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()

    def find_state(job_id: str) -> JobState:
        run.update_record(status="failed")
        asyncio.run(queue.resume(run.path.name))
        monkeypatch.undo()
        return "ended"

    monkeypatch.setattr(jobs, "find_state", find_state)
    run.update_record(status="running")
    await queue.reconcile()
    assert run.read_record().num_lost == 0
    assert run.read_record().num_starts == 2
    assert not any(message.startswith("Interrupted") for message in list_messages(run))


async def test_former_process_cannot_fail_requeued_run(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id)
    assert run.read_record().writer == "queue"
    launch.fail_run(run, RuntimeError("an old process, late"))
    assert run.read_record().status == "queued"
    assert "an old process, late" not in list_messages(run)
