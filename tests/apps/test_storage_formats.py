"""Storage folders of the previous release, and of a future release."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import name_export_note
from apps.fine_tuning.queue import RunQueue
from apps.http_api.app import build_http
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout, open_storage
from tests.apps.conftest import NotedJobs, build_services
from training.checkpoint.format import find_damage, list_checkpoints
from training.run.folder import RunFolder

pytestmark = pytest.mark.anyio

STORAGE_0_1 = Path(__file__).parents[1] / "fixtures" / "storage-0.1"
JOBS = "/v1/fine_tuning/jobs"
TUNED = "tiny-succee-000001"
SUCCEEDED, FAILED, QUEUED, PAUSED = (f"ftjob-186d0f3c5e0a1b2c0000000{n}" for n in range(1, 5))
GOOD_FILE, BAD_FILE = (f"file-186d0f3c5e0a1b2c0000000{n}" for n in range(1, 3))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def layout(tmp_path: Path, tiny_model: Path) -> StorageLayout:
    layout = open_storage(tmp_path / "storage")
    ModelStore(layout).add(tiny_model, "tiny")
    shutil.copytree(STORAGE_0_1, layout.root, dirs_exist_ok=True)
    return layout


@pytest.fixture
def queue(layout: StorageLayout, jobs: NotedJobs) -> Iterator[RunQueue]:
    with closing(RunQueue(layout, jobs)) as queue:
        yield queue


@pytest.fixture
def client(layout: StorageLayout, queue: RunQueue) -> httpx.AsyncClient:
    services = build_services(layout, queue)
    transport = httpx.ASGITransport(build_http(services, None))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


def change(path: Path, **changes: Any) -> dict[str, Any]:
    """Rewrite a stored file as another release might write it."""
    value = {**durable.read_json(path), **changes}
    path.write_text(json.dumps(value))
    return value


async def list_jobs(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await client.get(JOBS)
    assert answer.status_code == 200
    return {job["id"]: job for job in answer.json()["data"]}


async def test_storage_of_release_0_1_is_read_and_used(
    client: httpx.AsyncClient, queue: RunQueue, layout: StorageLayout, jobs: NotedJobs
) -> None:
    listed = await list_jobs(client)
    assert {name: job["status"] for name, job in listed.items()} == {
        PAUSED: "paused",
        QUEUED: "queued",
        FAILED: "failed",
        SUCCEEDED: "succeeded",
    }
    assert listed[SUCCEEDED]["fine_tuned_model"] == "tiny-succee-000001"
    assert listed[SUCCEEDED]["training"]["epochs"] == 2
    assert listed[SUCCEEDED]["training_filename"] == "rows.jsonl"
    assert listed[FAILED]["error"]["code"] == "interrupted"
    assert listed[PAUSED]["progress"]["step"] == 2
    files = {file["id"]: file for file in (await client.get("/v1/files")).json()["data"]}
    assert files[GOOD_FILE]["check"]["num_rows"] == 4
    assert files[BAD_FILE]["status"] == "error"
    alias = (await client.get("/v1/aliases/latest")).json()
    assert alias["model"] == "tiny"
    await queue.reconcile()
    assert jobs.started == [QUEUED]
    assert (await client.post(f"{JOBS}/{PAUSED}/resume")).json()["status"] == "queued"
    assert (await client.post(f"{JOBS}/{FAILED}/resume")).json()["status"] == "queued"
    assert (await client.delete(f"{JOBS}/{SUCCEEDED}")).status_code == 200
    assert RunFolder(layout.run(PAUSED)).read_record().num_starts == 1


async def test_model_and_checkpoint_of_release_0_1_are_read_and_used(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    model = (await client.get(f"/v1/models/{TUNED}")).json()
    assert (model["run_id"], model["checkpoint_step"], model["base"]) == (SUCCEEDED, 4, False)
    assert model["demonstration"], (
        "the root of the lineage is not recognized as demonstration model"
    )
    lineage = (await client.get(f"/v1/models/{TUNED}/lineage")).json()
    assert lineage["root"]["base_model"] == "tuneserve-demo"
    assert lineage["parent"]["base_model"] == "tuneserve-demo-tuned-0000a1"
    assert (await client.post(f"/v1/models/{TUNED}/verify")).json()["verified"]
    moved = await client.put("/v1/aliases/latest", json={"model": TUNED})
    assert moved.json()["model"] == TUNED
    checkpoints = (await client.get(f"{JOBS}/{PAUSED}/checkpoints")).json()["data"]
    assert [checkpoint["step_number"] for checkpoint in checkpoints] == [2]
    (checkpoint,) = list_checkpoints(RunFolder(layout.run(PAUSED)).checkpoints)
    assert find_damage(checkpoint, 0, 1) is None


async def test_stored_files_have_format_version(queue: RunQueue, layout: StorageLayout) -> None:
    job = await queue.create({"model": "tiny", "training_file": GOOD_FILE})
    FileStore(layout).add("file-new", b"{}", "new.jsonl")
    FileStore(layout).record_check("file-new", "processed", None, None)
    KeyStore(layout).create("ann", Role.READ)
    await queue.publish_checkpoint(PAUSED, f"{PAUSED}-step-2", "two")
    run = RunFolder(layout.run(job["id"]))
    for path in (
        run.record_file,
        layout.file("file-new") / "file.json",
        layout.file("file-new") / "check.json",
        layout.model("tiny") / durable.MANIFEST_NAME,
        layout.access.keys,
        name_export_note(RunFolder(layout.run(PAUSED)), "two"),
    ):
        assert durable.read_json(path)["format_version"] == "1.0", path
    # Release 0.1 would reject a version in spec.json; that in run.json covers the whole folder.
    assert "format_version" not in durable.read_json(run.spec_file)


async def test_unknown_fields_of_newer_minor_version_are_ignored_and_kept(
    client: httpx.AsyncClient,
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, more = RunFolder(layout.run(QUEUED)), {"format_version": "1.7", "tags": ["new"]}
    request = {**durable.read_json(run.record_file)["request"], "reward": {"kind": "new"}}
    change(run.record_file, **more, request=request)
    change(run.spec_file, rank=8)
    change(layout.file(GOOD_FILE) / "file.json", **more)
    change(layout.file(GOOD_FILE) / "check.json", **more)
    shown = (await client.get(f"{JOBS}/{QUEUED}")).json()
    assert (shown["status"], shown["error"]) == ("queued", None)
    assert "rank" not in shown["training"]
    assert (await client.get(f"/v1/files/{GOOD_FILE}")).json()["check"]["num_rows"] == 4
    for _ in range(3):
        await queue.reconcile()
    assert jobs.started == [QUEUED]
    assert [r.getMessage() for r in caplog.records if "rank" in r.getMessage()] == [
        f"the spec of run {QUEUED} has settings of a newer version, which are ignored: rank"
    ]
    clone = await client.post(f"{JOBS}/{QUEUED}/clone", json={"suffix": "two"})
    assert clone.status_code == 200
    run.write_spec(run.read_spec())  # as when a run determines its precision
    kept = durable.read_json(run.record_file)
    assert (kept["tags"], kept["format_version"], kept["writer"]) == (["new"], "1.7", "job")
    assert kept["request"]["reward"] == {"kind": "new"}
    assert durable.read_json(run.spec_file)["rank"] == 8


async def test_job_with_unknown_value_of_newer_version_is_listed(
    client: httpx.AsyncClient, queue: RunQueue, layout: StorageLayout, jobs: NotedJobs
) -> None:
    queued, failed = RunFolder(layout.run(QUEUED)), RunFolder(layout.run(FAILED))
    change(queued.record_file, format_version="1.7")
    change(queued.spec_file, lr_schedule="wsd")
    record = change(failed.record_file, status="evaluating", format_version="1.7")
    await queue.reconcile()
    assert jobs.started == []
    listed = await list_jobs(client)
    assert listed.keys() == {PAUSED, QUEUED, SUCCEEDED, FAILED}
    assert listed[QUEUED]["status"] == "queued"
    assert listed[QUEUED]["error"]["code"] == "settings_unreadable"
    for reason in (listed[QUEUED]["error"]["message"], listed[QUEUED]["waiting_for"]):
        assert "its format is 1.7" in reason
        assert "lr_schedule" in reason
    assert listed[FAILED]["status"] == "unreadable"
    assert "evaluating" in listed[FAILED]["error"]["message"]
    assert (await client.get(f"{JOBS}/{FAILED}")).json()["status"] == "unreadable"
    assert durable.read_json(failed.record_file) == record
    assert (await client.post(f"{JOBS}/{QUEUED}/cancel")).json()["status"] == "cancelled"


async def test_job_with_request_of_newer_version_is_not_cloned(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    run = RunFolder(layout.run(QUEUED))
    request = {**run.read_record().request, "method": {"type": "reinforcement"}}
    change(run.record_file, format_version="1.7", request=request)
    refused = await client.post(f"{JOBS}/{QUEUED}/clone")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "settings_unreadable")
    assert "'reinforcement'" in refused.json()["error"]["message"]


async def test_files_of_newer_major_version_are_reported_and_unchanged(
    client: httpx.AsyncClient, queue: RunQueue, layout: StorageLayout, jobs: NotedJobs
) -> None:
    run, file = RunFolder(layout.run(QUEUED)), layout.file(GOOD_FILE) / "file.json"
    written = [change(path, format_version="2.0") for path in (run.record_file, file)]
    for _ in range(2):
        await queue.reconcile()
    assert jobs.started == []
    shown = (await client.get(f"{JOBS}/{QUEUED}")).json()
    assert shown == (await list_jobs(client))[QUEUED]
    assert shown["status"] == "unreadable"
    assert "its format is 2.0, and this version writes 1.0" in shown["error"]["message"]
    for action in ("cancel", "pause", "resume"):
        assert (await client.post(f"{JOBS}/{QUEUED}/{action}")).status_code == 500
    assert (await client.delete(f"{JOBS}/{QUEUED}")).status_code == 500
    answer = await client.get(f"/v1/files/{GOOD_FILE}")
    assert answer.status_code == 500
    assert "its format is 2.0" in answer.json()["error"]["message"]
    assert [durable.read_json(path) for path in (run.record_file, file)] == written
    assert not run.cancel_file.exists()


def list_versioned_model_files(layout: StorageLayout) -> list[Path]:
    """List the versioned files of the fixture's model and checkpoint."""
    checkpoint = RunFolder(layout.run(PAUSED)).checkpoints / "checkpoint_0000000002"
    model = layout.model(TUNED)
    return [model / "lineage.json", model / "manifest.json", checkpoint / "manifest-00000.json"]


async def test_model_and_checkpoint_of_newer_minor_version_are_used(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    lineage, manifest, checkpoint = list_versioned_model_files(layout)
    change(lineage, format_version="1.7", signed_by="ann")
    files = durable.read_json(manifest)["files"]
    content = lineage.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    files["lineage.json"] = {"size_bytes": len(content), "sha256": digest, "blake3": "new"}
    change(manifest, format_version="1.7", files=files)
    change(checkpoint, format_version="1.7", signed_by="ann")
    assert (await client.get(f"/v1/models/{TUNED}")).json()["run_id"] == SUCCEEDED
    assert (await client.get(f"/v1/models/{TUNED}/lineage")).json()["signed_by"] == "ann"
    assert (await client.post(f"/v1/models/{TUNED}/verify")).json()["verified"]
    checkpoints = (await client.get(f"{JOBS}/{PAUSED}/checkpoints")).json()["data"]
    assert [found["step_number"] for found in checkpoints] == [2]


async def test_model_and_checkpoint_of_newer_major_version_are_refused(
    client: httpx.AsyncClient, layout: StorageLayout, caplog: pytest.LogCaptureFixture
) -> None:
    files = list_versioned_model_files(layout)
    written = [change(path, format_version="2.0") for path in files]
    assert TUNED in {model["id"] for model in (await client.get("/v1/models")).json()["data"]}
    verified = await client.post(f"/v1/models/{TUNED}/verify")
    assert (verified.status_code, verified.json()["error"]["code"]) == (409, "newer_format")
    lineage = await client.get(f"/v1/models/{TUNED}/lineage")
    assert (lineage.status_code, lineage.json()["error"]["code"]) == (500, "lineage_unreadable")
    tuned = await client.post(JOBS, json={"model": TUNED, "training_file": GOOD_FILE})
    assert (tuned.status_code, tuned.json()["error"]["code"]) == (500, "lineage_unreadable")
    for answer in (verified, lineage, tuned):
        message = answer.json()["error"]["message"]
        assert "its format is 2.0, and this version writes 1.0" in message
        assert str(layout.root) not in message
    assert (await client.get(f"{JOBS}/{PAUSED}/checkpoints")).json()["data"] == []
    said = [*caplog.messages, verified.text, lineage.text]
    assert not any("damaged" in text for text in said)
    assert [durable.read_json(path) for path in files] == written


async def test_stored_values_above_lowered_limit_are_reduced(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    change(RunFolder(layout.run(QUEUED)).spec_file, keep_checkpoints=10**6, threads_per_worker=1024)
    training = (await client.get(f"{JOBS}/{QUEUED}")).json()["training"]
    assert (training["keep_checkpoints"], training["threads_per_worker"]) == (1000, 256)
