"""Each class of request has its own slots."""

import asyncio
import threading

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.middleware import admission
from apps.middleware.admission import Admission
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.access.conftest import Connect, connect, keys
from tests.apps.conftest import AppClient, add_job
from tests.waiting import wait_for

__all__ = ["connect", "keys"]
pytestmark = pytest.mark.anyio
MAX_STREAMS, MAX_ORDINARY = 2, 3


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Hanging:
    """An application that answers health requests at once, and others after `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.num_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in ("/healthz", "/livez", "/readyz"):
            self.num_waiting += 1
            await self.may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def test_one_key_cannot_occupy_all_slots(
    keys: KeyStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_ORDINARY_PER_KEY", MAX_ORDINARY)
    may_end = threading.Event()
    monkeypatch.setattr(ModelStore, "list_models", lambda _: may_end.wait(20) and [])
    client = connect(keys.create("one", Role.CHAT).text)
    other = connect_second_client(client, keys.create("other", Role.CHAT).text)
    async with client, other:
        tasks = [asyncio.create_task(client.get("/v1/models")) for _ in range(MAX_ORDINARY)]
        async with asyncio.timeout(20):
            while (answer := await client.get("/v1/access")).status_code != 429:
                await asyncio.sleep(0.01)
            assert "requests of this key are open" in answer.json()["error"]["message"]
            assert (await other.get("/v1/access")).status_code == 200
            may_end.set()
            assert [(await task).status_code for task in tasks] == [200] * MAX_ORDINARY
            assert (await client.get("/v1/access")).status_code == 200


async def test_environment_key_has_slot_limit(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_ORDINARY_PER_KEY", 0)
    async with connect("s3cret", api_key="s3cret") as client:
        refused = await client.get("/v1/models")
        assert refused.status_code == 429
        assert "requests of this key are open" in refused.json()["error"]["message"]


async def test_one_key_cannot_occupy_all_streams(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    run = add_job(layout, "tiny")
    run.update_record(status="paused")
    events = f"/v1/fine_tuning/jobs/{run.path.name}/events?stream=true"
    client = connect(keys.create("one", Role.READ).text)
    other = connect_second_client(client, keys.create("other", Role.READ).text)
    async with client, other, asyncio.timeout(20):
        tasks = {asyncio.create_task(client.get(events, timeout=60)) for _ in range(2)}
        ended, open_streams = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [await task for task in ended]
        assert refused.status_code == 429
        assert "1 streams of events and logs of this key" in refused.json()["error"]["message"]
        open_streams.add(asyncio.create_task(other.get(events, timeout=60)))
        run.update_record(status="cancelled")
        for task in open_streams:
            assert (await task).is_success


def connect_second_client(client: AppClient, key: str) -> AppClient:
    """Return another client of the same application."""
    return AppClient(client.app, str(client.base_url), headers={"authorization": f"Bearer {key}"})


async def test_full_slots_of_one_class_do_not_block_other_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MAX_ORDINARY_REQUESTS", MAX_ORDINARY)
    hanging = Hanging()
    transport = httpx.ASGITransport(Admission(hanging, MAX_STREAMS))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        paths = ["/v1/files"] * MAX_ORDINARY + ["/v1/jobs/a/events?stream=true"] * MAX_STREAMS
        tasks = [asyncio.create_task(client.get(path)) for path in paths]
        await wait_for(lambda: hanging.num_waiting == len(paths), 10, "all requests are open")
        async with asyncio.timeout(10):
            for path in ("/v1/files", "/v1/jobs/a/logs?follow=true"):
                answer = await client.get(path)
                assert answer.status_code == 429, path
                assert "retry-after" in answer.headers
            for path in ("/healthz", "/livez", "/readyz"):
                assert (await client.get(path)).status_code == 200, path
            hanging.may_end.set()
            assert [(await task).status_code for task in tasks] == [200] * len(paths)
            assert (await client.get("/v1/files")).status_code == 200
