from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.queue import RunQueue
from apps.http_api.app import build_http
from apps.settings import UsageLimits
from serving.store.export import stream_archive
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, build_services
from training.run.folder import RunFolder
from training.run.progress import Progress

pytestmark = pytest.mark.anyio

JOBS, FILES = "/v1/fine_tuning/jobs", "/v1/files"
ROWS = b'{"prompt": "a", "completion": "b"}\n'
LIMITS = UsageLimits(
    max_jobs=3,
    max_unfinished_jobs=2,
    max_files=3,
    max_stored_bytes=10 * len(ROWS),
    max_workers_per_job=2,
    max_threads_per_worker=4,
    max_kept_checkpoints=5,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def queue(layout: StorageLayout, jobs: NotedJobs) -> Iterator[RunQueue]:
    with closing(RunQueue(layout, jobs, limits=LIMITS)) as queue:
        yield queue


@pytest.fixture
def client(layout: StorageLayout, queue: RunQueue) -> httpx.AsyncClient:
    services = build_services(layout, queue, limits=LIMITS)
    transport = httpx.ASGITransport(build_http(services, None))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


async def create(client: httpx.AsyncClient, file_id: str, **more: Any) -> httpx.Response:
    return await client.post(JOBS, json={"model": "latest", "training_file": file_id, **more})


async def upload(client: httpx.AsyncClient, content: bytes = ROWS) -> httpx.Response:
    files = {"file": ("rows.jsonl", content)}
    return await client.post(FILES, files=files, data={"purpose": "fine-tune"})


def check_refusal(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    for word in words:
        assert word in error["message"]


async def test_unfinished_jobs_beyond_limit_are_refused(
    client: httpx.AsyncClient, file_id: str
) -> None:
    first, _ = [(await create(client, file_id)).json()["id"] for _ in range(2)]
    refused = await create(client, file_id)
    check_refusal(refused, 429, "too_many_unfinished_jobs", "max_unfinished_jobs is 2")
    assert len((await client.get(JOBS)).json()["data"]) == 2
    await client.post(f"{JOBS}/{first}/cancel")
    assert (await create(client, file_id)).status_code == 200
    refused = await client.post(f"{JOBS}/{first}/resume")
    check_refusal(refused, 429, "too_many_unfinished_jobs")


async def test_recorded_jobs_beyond_limit_are_refused(
    client: httpx.AsyncClient, file_id: str
) -> None:
    for _ in range(3):
        last = (await create(client, file_id)).json()["id"]
        await client.post(f"{JOBS}/{last}/cancel")
    check_refusal(await create(client, file_id), 409, "too_many_jobs", "max_jobs is 3", "delete")
    assert (await client.delete(f"{JOBS}/{last}")).status_code == 200
    assert (await create(client, file_id)).status_code == 200


async def test_files_beyond_limit_are_refused(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        last = (await upload(client)).json()["id"]
    check_refusal(await upload(client), 409, "too_many_files", "max_files is 3")
    assert (await client.delete(f"{FILES}/{last}")).status_code == 200
    assert (await upload(client)).status_code == 200


async def test_stored_bytes_beyond_limit_are_refused(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    first = (await upload(client, ROWS * 6)).json()["id"]
    refused = await upload(client, ROWS * 5)
    check_refusal(refused, 507, "storage_full", "max_stored_bytes", f"{len(ROWS) * 6:,}")
    assert [path.name for path in layout.files.iterdir()] == [first]
    assert (await upload(client, ROWS * 4)).status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [("num_workers", 3, 2), ("threads_per_worker", 5, 4), ("keep_checkpoints", 6, 5)],
)
async def test_training_settings_beyond_limit_are_refused(
    client: httpx.AsyncClient, file_id: str, name: str, value: int, limit: int
) -> None:
    refused = await create(client, file_id, training={name: value})
    words = f"{name} is {value}; this server accepts at most {limit}"
    check_refusal(refused, 400, "limit_exceeded", words)
    assert refused.json()["error"]["param"] == f"training.{name}"
    accepted = await create(client, file_id, training={name: limit, "cpus_per_worker": 0.5})
    assert accepted.status_code == 200


@asynccontextmanager
async def connect(
    layout: StorageLayout, jobs: NotedJobs, max_model_store_bytes: int
) -> AsyncIterator[httpx.AsyncClient]:
    """Open the API of an application with a size limit for models and checkpoints."""
    limits = UsageLimits(max_model_store_bytes=max_model_store_bytes)
    with closing(RunQueue(layout, jobs, limits=limits)) as queue:
        services = build_services(layout, queue, limits=limits)
        transport = httpx.ASGITransport(build_http(services, None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as one:
            yield one


def add_checkpoint(run: RunFolder, step: int, size_bytes: int) -> Path:
    """Write the manifest of a checkpoint with one file of `size_bytes`."""
    folder = run.checkpoints / f"checkpoint_{step:010d}"
    folder.mkdir(parents=True)
    manifest = {
        "rank": 0,
        "world_size": 1,
        "progress": Progress(step=step, num_shares=1).model_dump(),
        "files": {"state/shard.pt": {"size_bytes": size_bytes, "sha256": "ab"}},
    }
    durable.write_json(folder / "manifest-00000.json", manifest)
    return folder


def test_model_store_size_is_measured_from_manifests(
    layout: StorageLayout, tiny_model: Path
) -> None:
    sizes = ModelSizes(layout)
    size_bytes = sum(path.stat().st_size for path in tiny_model.iterdir())
    assert sizes.measure() == sizes.measure_model("tiny") == size_bytes
    assert sizes.measure_model("nope") == 0
    ModelStore(layout).add(tiny_model, "other")
    checkpoint = add_checkpoint(RunFolder(layout.run("ftjob-1")), 5, 1_000)
    (layout.runs / "stray").touch()
    (layout.models / "no-model").mkdir()
    assert sizes.measure() == 2 * size_bytes + 1_000
    (checkpoint / "manifest-00000.json").unlink()
    ModelStore(layout).delete("other")
    assert sizes.measure() == size_bytes


def test_unreadable_manifest_is_logged_once_and_skipped(
    layout: StorageLayout, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ModelStore(layout).add(tiny_model, "other")
    (layout.model("other") / "manifest.json").write_text("{")
    sizes = ModelSizes(layout)
    assert [sizes.measure() for _ in range(3)] == [sizes.measure_model("tiny")] * 3
    assert len([m for m in caplog.messages if "its files are not counted" in m]) == 1


async def test_jobs_and_exports_beyond_model_store_limit_are_refused(
    layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    size_bytes = ModelSizes(layout).measure_model("tiny")
    async with connect(layout, jobs, 2 * size_bytes + 500) as client:
        created = await create(client, file_id)
        assert created.status_code == 200
        job_id = created.json()["id"]
        run = RunFolder(layout.run(job_id))
        add_checkpoint(run, 5, 400)
        publish = f"{JOBS}/{job_id}/checkpoints/{job_id}-step-5/publish"
        assert (await client.post(publish, json={"model": "five"})).status_code == 202
        add_checkpoint(run, 6, 200)
        words = (f"{size_bytes + 600:,} bytes", f"max_model_store_bytes, {2 * size_bytes + 500:,}")
        refused = await create(client, file_id)
        check_refusal(refused, 507, "model_store_full", *words, "delete models")
        refused = await client.post(publish.replace("step-5", "step-6"), json={"model": "six"})
        check_refusal(refused, 507, "model_store_full", *words)


@pytest.mark.parametrize(("export", "is_refused"), [("merged", True), ("adapter", False)])
async def test_job_of_adapter_needs_room_for_what_it_publishes(
    layout: StorageLayout, jobs: NotedJobs, file_id: str, export: str, is_refused: bool
) -> None:
    sizes = ModelSizes(layout)
    size_bytes = sizes.measure_model("tiny")
    async with connect(layout, jobs, 2 * size_bytes - 1) as client:
        check_refusal(
            await create(client, file_id), 507, "model_store_full", f"{size_bytes:,} more"
        )
        training = {"adapter": {"rank": 1, "export": export}, "export_dtype": "fp32"}
        created = await create(client, file_id, training=training)
        if is_refused:
            check_refusal(created, 507, "model_store_full", f"{size_bytes:,} more")
            return
        assert created.status_code == 200, created.text
        job_id = created.json()["id"]
        add_checkpoint(RunFolder(layout.run(job_id)), 5, 400)
        publish = f"{JOBS}/{job_id}/checkpoints/{job_id}-step-5/publish"
        assert (await client.post(publish, json={"model": "five"})).status_code == 202


@pytest.mark.usefixtures("preloaded_check")
async def test_import_beyond_model_store_limit_leaves_no_files(
    layout: StorageLayout, jobs: NotedJobs
) -> None:
    size_bytes = ModelSizes(layout).measure()
    archive = b"".join(stream_archive(ModelStore(layout).get("tiny"), "zip"))
    for most, is_enough in ((1, False), (2 * size_bytes - 1, False), (3 * size_bytes, True)):
        async with connect(layout, jobs, most) as client:
            answer = await client.put("/v1/models/sent", content=archive)
        if is_enough:
            assert answer.status_code == 200, answer.text
        else:
            check_refusal(answer, 507, "model_store_full", "max_model_store_bytes")
            assert [path.name for path in layout.models.iterdir()] == ["tiny"]
    assert ModelStore(layout).get("sent")
