"""The components that `/readyz` names on failure, and the dependencies of `/livez`."""

import asyncio
import errno
import logging
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.http_api import readiness
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from tests.apps.conftest import Echo

pytestmark = pytest.mark.anyio
READY = {"storage": "ok", "generator": "ok", "classifier": "ok", "queue": "ok"}


def open_client(services: Services, api_key: str | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(build_http(services, api_key))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


async def read_checks(client: httpx.AsyncClient, status: int) -> dict[str, str]:
    for path in ("/readyz", "/healthz"):
        answer = await client.get(path)
        assert answer.status_code == status, answer.text
        assert answer.json()["status"] == ("ok" if status == 200 else "failed")
    assert (await client.get("/livez")).json() == {"status": "ok"}
    return dict(answer.json()["checks"])


async def test_application_with_working_components_is_ready(client: httpx.AsyncClient) -> None:
    assert await read_checks(client, 200) == READY


async def test_read_only_disk_is_not_ready_and_logged_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/secret/place")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", fail)
    assert await read_checks(client, 503) == {**READY, "storage": "failed"}
    assert "/secret/place" not in (await client.get("/readyz")).text
    logged = [one for one in caplog.records if one.levelno >= logging.WARNING]
    (message,) = [one.getMessage() for one in logged]  # logged once, not every second
    assert message.startswith("not ready: storage: OSError")


async def test_full_disk_is_not_ready(services: Services) -> None:
    free_bytes = shutil.disk_usage(services.layout.root).free
    full = replace(services, min_free_bytes=2 * free_bytes)
    async with open_client(full) as client:
        assert await read_checks(client, 503) == {**READY, "storage": "failed"}


async def test_missing_storage_folder_is_not_ready(
    client: httpx.AsyncClient, services: Services
) -> None:
    shutil.rmtree(services.layout.root)
    assert await read_checks(client, 503) == {**READY, "storage": "failed"}


async def test_damaged_alias_files_are_not_ready(
    client: httpx.AsyncClient, services: Services
) -> None:
    services.layout.store.aliases.write_text('{"latest": {"his')
    assert await read_checks(client, 200) == READY, "the aliases were not read from their copy"
    for path in services.layout.root.glob("aliases*.json"):
        path.write_text("{")
    await asyncio.sleep(0)
    async with open_client(services) as other:
        assert await read_checks(other, 503) == {**READY, "storage": "failed"}


async def test_failed_generator_is_named_without_details(services: Services) -> None:
    assert isinstance(services.text, Echo)
    services.text.failure = RuntimeError("a secret of the inside")
    async with open_client(services, "s3cret") as client:
        assert await read_checks(client, 503) == {**READY, "generator": "failed"}
        assert "secret" not in (await client.get("/healthz")).text


async def test_hanging_disk_occupies_one_thread_and_no_client(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CHECK_TIMEOUT_S", 0.2)
    over, probes = threading.Event(), []

    def hang(root: Path, _: int) -> None:
        probes.append(root)
        over.wait(20)

    monkeypatch.setattr(readiness, "check_writable", hang)
    try:
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(8)))
        assert {answer.status_code for answer in answers} == {503}
        assert len(probes) == 1
    finally:
        over.set()
