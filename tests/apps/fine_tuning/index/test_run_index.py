import errno
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest

from apps.file_store import FileStore
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.queue import RunQueue
from storage import durable
from storage.layout import StorageLayout
from storage.regular_file import open_regular
from tests.apps.conftest import NotedJobs, create_run, reconcile_until
from training.run.folder import RunFolder

pytestmark = pytest.mark.anyio

JOBS = "/v1/fine_tuning/jobs"
STORAGE_0_1 = Path(__file__).parents[3] / "fixtures" / "storage-0.1"
_OPENED: list[list[str]] = []


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if _OPENED and event in ("open", "os.scandir"):
        _OPENED[-1].append(str(arguments[0]))


sys.addaudithook(_note_opened)


@contextmanager
def note_opened(folder: Path) -> Iterator[list[str]]:
    """Record the files and folders below a folder that any thread of this process opens."""
    opened: list[str] = []
    _OPENED.append(opened)
    try:
        yield opened
    finally:
        _OPENED.remove(opened)
        opened[:] = [path for path in opened if path.startswith(f"{folder}/")]


def age(folder: Path) -> None:
    """Set the modification times of a folder's files to the epoch."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (0, 0))


def add_ended_runs(layout: StorageLayout, number: int) -> list[RunFolder]:
    source = STORAGE_0_1 / "runs" / "ftjob-186d0f3c5e0a1b2c00000001"
    record = durable.read_json(source / "run.json")
    runs = []
    for count in range(number):
        run = RunFolder(layout.runs / f"ftjob-186d0f3c5e0a1b2c{count:08x}")
        shutil.copytree(source, run.path)
        run.record_file.write_text(
            json.dumps({**record, "id": run.path.name, "created_at": count + 1})
        )
        runs.append(run)
    return runs


def add_checked_files(layout: StorageLayout, number: int) -> None:
    source = STORAGE_0_1 / "files" / "file-186d0f3c5e0a1b2c00000001"
    record = durable.read_json(source / "file.json")
    for count in range(number):
        folder = layout.files / f"file-186d0f3c5e0a1b2c{count:08x}"
        shutil.copytree(source, folder)
        (folder / "file.json").write_text(json.dumps({**record, "id": folder.name}))


def list_errors(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    messages = [found.getMessage() for found in caplog.records if found.levelno >= logging.ERROR]
    return [message for message in messages if name in message]


# Cost


async def test_reconcile_pass_reads_no_ended_run_or_validated_file(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    add_ended_runs(layout, 30)
    add_checked_files(layout, 40)
    run = await create_run(queue, file_id)
    FileStore(layout).record_check(file_id, "processed", None, None)
    for folder in (layout.runs, layout.files):
        age(folder)
    await queue.reconcile()
    assert jobs.started == [run.path.name]
    with note_opened(layout.root) as opened:
        await queue.reconcile()
    unrelated = [path for path in opened if run.path.name not in path]
    assert unrelated == []
    assert len(opened) <= 20


async def test_job_list_reads_only_records_of_its_page(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    add_ended_runs(layout, 60)
    age(layout.runs)
    first = (await client.get(JOBS)).json()
    with note_opened(layout.root) as opened:
        assert (await client.get(JOBS)).json() == first
    assert len(first["data"]) == 20
    assert {path.split("/")[-2] for path in opened if path.endswith("run.json")} == {
        job["id"] for job in first["data"]
    }


async def test_file_list_reads_no_unchanged_file(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    add_checked_files(layout, 40)
    age(layout.files)
    first = (await client.get("/v1/files")).json()
    assert len(first["data"]) == 40
    assert first["data"][0]["status"] == "processed"
    with note_opened(layout.root) as opened:
        assert (await client.get("/v1/files")).json() == first
    # The folder is listed for new files, and the key file is checked for the request.
    assert set(opened) <= {str(layout.files), str(layout.root / "keys.json")}


# Changes by other processes


def test_index_detects_changes_by_other_processes(layout: StorageLayout) -> None:
    runs, index = add_ended_runs(layout, 5), RunIndex(layout)
    age(layout.runs)
    assert len(index.scan().runs) == 5
    assert index.scan_unfinished().runs == []
    runs[2].update_record(status="queued")
    index.record_reopened(runs[2].path.name)
    assert [run.path for run, _ in index.scan_unfinished().runs] == [runs[2].path]
    runs[2].update_record(status="running")
    assert [record.status for _, record in index.scan_unfinished().runs] == ["running"]
    runs[2].update_record(status="cancelled")
    assert index.scan_unfinished().runs == []
    assert [record.status for _, record in index.scan().runs].count("cancelled") == 1
    shutil.rmtree(runs[4].path)
    assert [run.path for run, _ in index.scan().runs] == [run.path for run in runs[3::-1]]
    assert index.count() == (4, 0)


# Faults of one entry


@pytest.mark.parametrize("content", [b"", b"\x00" * 300, b'{"id": "x"}', b"[1]"])
async def test_damaged_run_record_does_not_block_other_runs(
    queue: RunQueue,
    client: httpx.AsyncClient,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    broken, other = await create_run(queue, file_id), await create_run(queue, file_id)
    whole = broken.record_file.read_bytes()
    broken.record_file.write_bytes(content)
    for _ in range(3):
        await queue.reconcile()
    assert jobs.started == [other.path.name]
    assert len(list_errors(caplog, broken.path.name)) == 1
    listed = (await client.get(JOBS)).json()["data"]
    assert [(job["id"], job["status"]) for job in listed] == [
        (other.path.name, "queued"),
        (broken.path.name, "unreadable"),
    ]
    answer = await client.get(f"{JOBS}/{broken.path.name}")
    assert answer.status_code == 500
    assert broken.path.name in answer.json()["error"]["message"]
    assert str(layout.root) not in answer.text
    for change in ("cancel", "pause", "resume"):
        assert (await client.post(f"{JOBS}/{broken.path.name}/{change}")).status_code == 500
    assert (await client.delete(f"{JOBS}/{broken.path.name}")).status_code == 500
    assert broken.record_file.read_bytes() == content
    broken.record_file.write_bytes(whole)  # restored
    other.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [other.path.name, broken.path.name]


async def test_foreign_entries_in_storage_do_not_block_runs(
    queue: RunQueue,
    client: httpx.AsyncClient,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (layout.runs / "notes.txt").write_text("mine")
    (layout.runs / "lost+found").mkdir()
    (layout.files / "notes.txt").write_text("mine")
    run = await create_run(queue, file_id)
    for _ in range(3):
        await queue.reconcile()
    assert jobs.started == [run.path.name]
    assert len(list_errors(caplog, "notes.txt")) == 1
    assert [job["id"] for job in (await client.get(JOBS)).json()["data"]] == [run.path.name]
    assert (await client.get(f"{JOBS}/notes.txt")).status_code == 404
    assert (await client.get("/v1/files/notes.txt")).status_code == 404
    assert [file["id"] for file in (await client.get("/v1/files")).json()["data"]] == [file_id]
    assert (layout.runs / "notes.txt").read_text() == "mine"


async def test_fifo_as_run_record_does_not_block_other_runs(
    queue: RunQueue, client: httpx.AsyncClient, jobs: NotedJobs, file_id: str
) -> None:
    """Previously, opening the FIFO blocked until it had a writer, and no run was started."""
    broken, other = await create_run(queue, file_id), await create_run(queue, file_id)
    broken.record_file.unlink()
    os.mkfifo(broken.record_file)
    await queue.reconcile()
    assert jobs.started == [other.path.name]
    listed = (await client.get(JOBS)).json()["data"]
    assert [job["status"] for job in listed] == ["queued", "unreadable"]


async def test_disk_error_of_run_record_does_not_block_other_runs(
    queue: RunQueue,
    jobs: NotedJobs,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, other = await create_run(queue, file_id), await create_run(queue, file_id)

    def fail(path: Path) -> BinaryIO:
        if path == broken.record_file:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return open_regular(path)

    with monkeypatch.context() as patch:
        patch.setattr("storage.regular_file.open_regular", fail)
        for _ in range(3):
            await queue.reconcile()
    assert jobs.started == [other.path.name]
    assert len(list_errors(caplog, broken.path.name)) == 1
    other.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [other.path.name, broken.path.name]


async def test_copied_run_folder_is_not_started(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    shutil.copytree(run.path, layout.runs / "ftjob-copy")
    run.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == []


async def test_resources_that_unreadable_job_may_need_are_not_deleted(
    queue: RunQueue, client: httpx.AsyncClient, layout: StorageLayout, file_id: str
) -> None:
    FileStore(layout).add("file-other", b"{}", "other.jsonl")
    run = await create_run(queue, file_id)
    record = durable.read_json(run.record_file)
    run.record_file.write_text(json.dumps({**record, "format_version": "9.0"}))
    answer = await client.delete(f"/v1/files/{file_id}")
    assert answer.status_code == 409
    assert run.path.name in answer.json()["error"]["message"]
    assert (await client.delete("/v1/models/tiny")).status_code == 409
    assert (await client.delete("/v1/files/file-other")).status_code == 200
    assert [path.name for path in layout.files.iterdir()] == [file_id]


async def test_damaged_file_record_gets_500_and_does_not_hide_other_files(
    queue: RunQueue,
    client: httpx.AsyncClient,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = FileStore(layout)
    files.add("file-broken", b'{"prompt": "a", "completion": "b"}', "broken.jsonl")
    record = layout.file("file-broken") / "file.json"
    record.write_bytes(b"\x00" * 100)
    run = await create_run(queue, file_id)
    for _ in range(3):
        await queue.reconcile()
    assert jobs.started == [run.path.name]
    await reconcile_until(queue, lambda: files.get(file_id)["status"] == "processed")
    assert len(list_errors(caplog, "file-broken")) == 1
    assert [file["id"] for file in (await client.get("/v1/files")).json()["data"]] == [file_id]
    body = {"model": "latest", "training_file": "file-broken"}
    for answer in (
        await client.get("/v1/files/file-broken"),
        await client.get("/v1/files/file-broken/content"),
        await client.post(JOBS, json=body),
    ):
        assert answer.status_code == 500
        assert "file-broken" in answer.json()["error"]["message"]
        assert str(layout.root) not in answer.text
    assert record.read_bytes() == b"\x00" * 100


async def test_damaged_validation_result_is_computed_again(
    queue: RunQueue, client: httpx.AsyncClient, layout: StorageLayout, file_id: str
) -> None:
    (layout.file(file_id) / "check.json").write_bytes(b"{")
    assert (await client.get(f"/v1/files/{file_id}")).json()["status"] == "uploaded"
    files = FileStore(layout)
    await reconcile_until(queue, lambda: files.get(file_id)["status"] == "processed")
    assert (await client.get(f"/v1/files/{file_id}")).json()["status"] == "processed"
