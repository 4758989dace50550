"""Long-running work does not occupy the threads that other requests need."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from apps.http_api.model_import import IncomingModel
from serving.store.stored_model import StoredModel
from tests.apps.http_api.routes.test_models import make_tar

pytestmark = pytest.mark.anyio
NUM_REQUESTS = 60  # FastAPI has 40 threads, asyncio at most 32
TIMEOUT_S = 20.0
CHAT = {"model": "latest", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event; verifications and imports block until it is set."""
    may_end = threading.Event()

    def verify(_: StoredModel) -> None:
        assert may_end.wait(TIMEOUT_S)

    def publish(incoming: IncomingModel, _: str, __: str | None) -> None:
        assert may_end.wait(TIMEOUT_S)
        incoming.close()
        raise FileExistsError("a model of this name exists")

    monkeypatch.setattr(StoredModel, "verify", verify)
    monkeypatch.setattr(IncomingModel, "publish", publish)
    yield may_end
    may_end.set()


@pytest.mark.parametrize("kind", ["verify", "import"])
async def test_slow_work_does_not_block_other_requests(
    client: httpx.AsyncClient, work: threading.Event, tiny_model: Path, kind: str
) -> None:
    archive = make_tar(tiny_model)

    def begin(number: int) -> "asyncio.Task[httpx.Response]":
        if kind == "verify":
            return asyncio.create_task(client.post("/v1/models/latest/verify"))
        return asyncio.create_task(client.put(f"/v1/models/new-{number}", content=archive))

    tasks = [begin(number) for number in range(NUM_REQUESTS)]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for path in ("/readyz", "/v1/models", "/v1/files", "/v1/access"):
                assert (await client.get(path)).status_code == 200, path
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert not any(task.done() for task in tasks)
    finally:
        work.set()
        answers = await asyncio.gather(*tasks)
    assert {answer.status_code for answer in answers} == {200 if kind == "verify" else 409}
