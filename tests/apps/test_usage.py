from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from apps.http import build_http
from apps.queue import RunQueue
from apps.settings import UsageLimits
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, build_services

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


async def test_more_unfinished_jobs_than_allowed_are_refused(
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


async def test_more_jobs_on_record_than_allowed_are_refused(
    client: httpx.AsyncClient, file_id: str
) -> None:
    for _ in range(3):
        last = (await create(client, file_id)).json()["id"]
        await client.post(f"{JOBS}/{last}/cancel")
    check_refusal(await create(client, file_id), 409, "too_many_jobs", "max_jobs is 3", "delete")
    assert (await client.delete(f"{JOBS}/{last}")).status_code == 200
    assert (await create(client, file_id)).status_code == 200


async def test_more_files_than_allowed_are_refused(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        last = (await upload(client)).json()["id"]
    check_refusal(await upload(client), 409, "too_many_files", "max_files is 3")
    assert (await client.delete(f"{FILES}/{last}")).status_code == 200
    assert (await upload(client)).status_code == 200


async def test_more_bytes_than_allowed_are_refused(
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
async def test_a_job_that_asks_for_too_much_is_refused(
    client: httpx.AsyncClient, file_id: str, name: str, value: int, limit: int
) -> None:
    refused = await create(client, file_id, training={name: value})
    words = f"{name} is {value}; this server accepts at most {limit}"
    check_refusal(refused, 400, "limit_exceeded", words)
    assert refused.json()["error"]["param"] == f"training.{name}"
    accepted = await create(client, file_id, training={name: limit, "cpus_per_worker": 0.5})
    assert accepted.status_code == 200
