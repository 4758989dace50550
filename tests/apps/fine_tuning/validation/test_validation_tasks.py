"""Validation of files concurrently with the queue's other work, and the number of attempts."""

import asyncio
import errno
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from apps.file_store import FileStore
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.row_validation import SlowRowsError, check_file, prepare_rows
from apps.fine_tuning.validation.validation_tasks import ValidationScheduler
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, create_run, reconcile_until
from tests.waiting import wait_for
from training.spec import TrainingSpec

pytestmark = pytest.mark.anyio
DEADLINE_S = 30.0


@pytest.fixture
def is_released(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """An event; every check of a file blocks until it is set."""
    event = Event()

    def wait(*_: Any, **__: Any) -> None:
        event.wait(DEADLINE_S)

    monkeypatch.setattr("apps.fine_tuning.validation.validation_tasks.check_file", wait)
    yield event
    event.set()


class Restarting:
    """A sequence of schedulers on one storage, like those of a queue that dies in each check."""

    def __init__(self, layout: StorageLayout, jobs: NotedJobs) -> None:
        self.now = 1_000.0
        self._layout, self._jobs = layout, jobs
        self._threads: list[RowThread] = []

    def start(self) -> ValidationScheduler:
        """Start the next scheduler."""
        self._threads.append(RowThread())
        return ValidationScheduler(
            self._layout, self._jobs, self._threads[-1], clock=lambda: self.now
        )

    def close(self) -> None:
        """End all threads."""
        for thread in self._threads:
            thread.close()


@pytest.fixture
def restarting(layout: StorageLayout, jobs: NotedJobs) -> Iterator[Restarting]:
    schedulers = Restarting(layout, jobs)
    yield schedulers
    schedulers.close()


async def test_hanging_validation_does_not_block_start_of_run(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, is_released: Event
) -> None:
    run = await create_run(queue, file_id)
    async with asyncio.timeout(DEADLINE_S / 2):
        for _ in range(3):
            await queue.reconcile()
    assert jobs.started == [run.path.name]
    assert FileStore(layout).get(file_id)["status"] == "uploaded"


async def test_slow_row_preparation_does_not_block_start_of_run(
    queue: RunQueue,
    jobs: NotedJobs,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await create_run(queue, file_id)
    has_begun, may_end = Event(), Event()

    def wait(*_: Any) -> None:
        has_begun.set()
        may_end.wait(DEADLINE_S)
        raise SlowRowsError

    monkeypatch.setattr("apps.fine_tuning.submission.prepare_rows", wait)
    creating = [asyncio.create_task(create_run(queue, file_id)) for _ in range(40)]
    await wait_for(has_begun.is_set, DEADLINE_S / 2, "the rows are being prepared")
    async with asyncio.timeout(DEADLINE_S / 2):
        await queue.reconcile()
    assert jobs.started == [run.path.name]
    may_end.set()
    created = await asyncio.gather(*creating)
    assert {one.read_record().status for one in created} == {"validating_files"}


async def test_small_files_are_validated_one_at_a_time(
    queue: RunQueue, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    may_end = Event()

    def note(_: StorageLayout, file_id: str, **__: Any) -> None:
        started.append(file_id)
        may_end.wait(DEADLINE_S)

    monkeypatch.setattr("apps.fine_tuning.validation.validation_tasks.check_file", note)
    for number in range(3):
        FileStore(layout).add(f"file-{number}", b'{"text": "fox"}\n', "rows.jsonl")
    for _ in range(5):
        await queue.reconcile()
    await reconcile_until(queue, lambda: started == ["file-0"])
    may_end.set()
    await reconcile_until(queue, lambda: len(started) > 1)


async def test_file_whose_validation_kills_process_is_rejected_after_limit(
    layout: StorageLayout, restarting: Restarting, file_id: str, is_released: Event
) -> None:
    files = FileStore(layout)
    for _ in range(5):
        restarting.start().reconcile_files()  # the queue dies during this check
        assert files.get(file_id)["status"] == "uploaded"
        restarting.now += 600.0
    restarting.start().reconcile_files()
    found = files.get(file_id)
    assert found["status"] == "error"
    assert found["status_details"] == (
        "the check of the file failed 5 times, the last time because its process ended without a "
        "reason being recorded"
    )
    assert list(layout.file(file_id).glob("check_tries*")) == []


async def test_job_whose_validation_kills_queue_fails_after_limit(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    restarting: Restarting,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)
    run = await create_run(queue, file_id)
    for _ in range(5):
        assert restarting.start().reconcile_job(run) == "its files are being checked"
        jobs.running.clear()
        restarting.now += 600.0
    refusal = restarting.start().reconcile_job(run)
    assert isinstance(refusal, dict)
    assert refusal["code"] == "interrupted"


async def test_validation_interrupted_by_shutdown_does_not_count_as_attempt(
    queue: RunQueue, layout: StorageLayout, file_id: str, is_released: Event
) -> None:
    await queue.reconcile()
    assert list(layout.file(file_id).glob("check_tries.json"))
    await queue.drain()
    assert list(layout.file(file_id).glob("check_tries.json")) == []


async def test_validation_failed_before_shutdown_counts_as_attempt(
    queue: RunQueue, layout: StorageLayout, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = Event()

    def fail(*_: Any, **__: Any) -> None:
        has_failed.set()
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("apps.fine_tuning.validation.validation_tasks.check_file", fail)
    await reconcile_until(queue, has_failed.is_set)
    await queue.create({"model": "latest", "training_file": file_id})  # on the same thread
    await queue.drain()
    assert list(layout.file(file_id).glob("check_tries.json"))


async def test_slow_validation_of_small_file_is_moved_to_task(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_S", 0.0)
    await reconcile_until(queue, lambda: bool(jobs.tasks))
    assert jobs.tasks == [Task("check_file", file_id)]
    run = await create_run(queue, file_id)
    assert run.read_record().status == "validating_files"
    preview = await queue.preview(file_id, "latest", 3, {})
    assert (len(preview["rows"]), preview["num_rows"]) == (3, None)
    check_file(layout, file_id)  # as the task does
    assert FileStore(layout).get(file_id)["status"] == "processed"
    preview = await queue.preview(file_id, "latest", 3, {})
    assert (len(preview["rows"]), preview["num_rows"]) == (3, 4)


def test_time_limit_applies_to_unusable_rows(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_S", 0.0)
    FileStore(layout).add("file-bad", b'{"text": ""}\n' * 9, "rows.jsonl")
    file = FileStore(layout).find_content("file-bad")
    model = str(layout.model("tiny"))
    with pytest.raises(SlowRowsError):
        prepare_rows(layout, TrainingSpec(base_model=model, train_file=str(file)))


async def test_failed_validation_is_retried_after_delay(
    layout: StorageLayout,
    restarting: Restarting,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []

    def fail(*_: Any, **__: Any) -> None:
        tried.append(restarting.now)
        raise OSError(errno.EROFS, "Read-only file system", str(layout.root / "cache"))

    monkeypatch.setattr("apps.fine_tuning.validation.validation_tasks.check_file", fail)
    scheduler = restarting.start()
    files = FileStore(layout)
    async with asyncio.timeout(DEADLINE_S):
        while files.get(file_id)["status"] == "uploaded":
            scheduler.reconcile_files()
            await asyncio.sleep(0.01)
            restarting.now += 1.0
    assert len(tried) == 5
    assert [
        after - before >= pause_s
        for before, after, pause_s in zip(tried, tried[1:], (5.0, 30.0, 120.0, 600.0), strict=False)
    ] == [True] * 4
    details = files.get(file_id)["status_details"] or ""
    assert "failed 5 times, the last time because [Errno 30] Read-only file system" in details
    assert str(layout.root) not in details
