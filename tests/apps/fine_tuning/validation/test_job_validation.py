"""Validation of the files of jobs and of uploads, as the queue schedules it."""

import asyncio

import pytest

from apps.file_store import FileStore
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.row_validation import check_file, check_job
from apps.fine_tuning.validation.validation_tasks import ValidationScheduler
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, create_run
from tests.apps.fine_tuning.conftest import fill_disk

pytestmark = pytest.mark.anyio


async def test_large_files_are_validated_by_task_before_job_is_queued(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, no_quick_validation: None
) -> None:
    run = await create_run(queue, file_id)
    assert run.read_record().status == "validating_files"
    await queue.reconcile()
    task = Task("check_job", run.path.name)
    assert task in jobs.tasks
    await queue.reconcile()
    assert jobs.tasks.count(task) == 1
    assert "are being checked" in (run.read_record().waiting_for or "")
    check_job(layout, run.path.name)
    jobs.running.clear()
    await queue.reconcile()
    assert run.read_record().status == "queued"
    await queue.reconcile()
    assert jobs.started == [run.path.name]


async def test_invalid_rows_in_large_file_fail_job_with_line_numbers(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, no_quick_validation: None
) -> None:
    FileStore(layout).add("file-bad", b'{"text": "x"}\n{"text": 3}\n', "bad.jsonl")
    run = await create_run(queue, "file-bad")
    await queue.reconcile()
    check_job(layout, run.path.name)
    jobs.running.clear()
    await queue.reconcile()
    job = describe_job(run)
    assert job["status"] == "failed"
    assert job["error"] is not None
    assert (job["error"]["code"], job["error"]["param"]) == (
        "invalid_training_file",
        "training_file",
    )
    assert "'text' is 3, expected text (line 2)" in job["error"]["message"]


async def test_upload_is_validated_and_counted(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    files = FileStore(layout)
    files.add("file-bad", b'{"text": 3}\n', "bad.jsonl")
    assert {file["status"] for file in files.list_files()} == {"uploaded"}
    async with asyncio.timeout(30):
        while any(file["status"] == "uploaded" for file in files.list_files()):
            await queue.reconcile()
    good, bad = files.get(file_id), files.get("file-bad")
    assert (good["status"], good["status_details"]) == ("processed", None)
    assert good["check"] is not None
    assert (good["check"]["num_rows"], good["check"]["model"]) == (4, "tiny")
    assert 0 < good["check"]["learned_share"] < 1
    assert bad["status"] == "error"
    assert bad["status_details"] is not None
    assert "'text' is 3, expected text (line 1)" in bad["status_details"]
    assert str(layout.root) not in bad["status_details"]


async def test_large_uploads_are_validated_one_after_another(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, no_quick_validation: None
) -> None:
    FileStore(layout).add("file-x", b'{"text": "x"}\n', "x.jsonl")
    for _ in range(2):
        await queue.reconcile()
    assert jobs.tasks == [Task("check_file", file_id)]
    check_file(layout, file_id)
    jobs.running.clear()
    await queue.reconcile()
    assert jobs.tasks[1:] == [Task("check_file", "file-x")]


async def test_no_file_validation_starts_during_shutdown(
    queue: RunQueue, jobs: NotedJobs, file_id: str, no_quick_validation: None
) -> None:
    await create_run(queue, file_id)
    await queue.drain()
    assert jobs.tasks == []


async def test_validation_whose_process_dies_is_repeated_limited_number_of_times(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    rows: RowThread,
    file_id: str,
    no_quick_validation: None,
) -> None:
    run = await create_run(queue, file_id)
    now = 0.0
    scheduler = ValidationScheduler(layout, jobs, rows, clock=lambda: now)
    for number, pause_s in enumerate((5.0, 30.0, 120.0, 600.0), 1):
        assert scheduler.reconcile_job(run) == "its files are being checked"
        jobs.running.clear()
        assert "will be checked again" in str(scheduler.reconcile_job(run))
        assert len(jobs.tasks) == number
        now += pause_s
    assert scheduler.reconcile_job(run) == "its files are being checked"
    jobs.running.clear()
    refusal = scheduler.reconcile_job(run)
    assert isinstance(refusal, dict)
    assert refusal["code"] == "interrupted"


async def test_full_disk_is_not_reported_as_invalid_rows(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    no_quick_validation: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    with monkeypatch.context() as patch:
        patch.setattr("training.data.prepare.prepare_data", fill_disk)
        with pytest.raises(OSError, match=r"^\[Errno 28\] No space left"):
            check_job(layout, run.path.name)
    check_job(layout, run.path.name)  # another attempt, with free space
    jobs.running.clear()
    await queue.reconcile()
    assert run.read_record().status == "queued"
