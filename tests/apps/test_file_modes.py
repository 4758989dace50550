"""Files that a replica writes are private to their owner under the usual umask."""

import os
import stat
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray.serve.handle import DeploymentHandle

from apps.http_api.app import ApiReplica
from apps.settings import ApplicationSettings
from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.tiny_model import build_tiny_model

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


class _NoHandle:
    """A handle to no deployment: the requests of this test reach none."""

    def options(self, **_: Any) -> "_NoHandle":
        return self


async def test_uploads_models_and_aliases_are_private(tmp_path: Any) -> None:
    source = build_tiny_model(tmp_path / "source")
    no_handle: DeploymentHandle[Any] = _NoHandle()  # type: ignore[assignment]
    settings = ApplicationSettings()
    replica = ApiReplica(str(tmp_path / "storage"), settings, no_handle, no_handle, no_handle)
    transport = httpx.ASGITransport(replica.__serve_build_asgi_app__())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        rows = ("rows.jsonl", b'{"prompt": "a", "completion": "b"}\n')
        uploaded = await client.post(
            "/v1/files", files={"file": rows}, data={"purpose": "fine-tune"}
        )
        assert uploaded.status_code == 200, uploaded.text
        store = ModelStore(open_storage(tmp_path / "storage"))
        store.add(source, "tiny")
        moved = await client.put("/v1/aliases/mine", json={"model": "tiny"})
        assert moved.status_code == 200, moved.text
    paths = [tmp_path / "storage", *(tmp_path / "storage").rglob("*")]
    assert len(paths) > 15
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
