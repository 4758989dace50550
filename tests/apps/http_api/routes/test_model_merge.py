"""Adapters are merged over HTTP, in the background, into models whose ids are reserved."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from apps.fine_tuning.index.run_lookup import check_new_model
from apps.http_api import merge_process, model_merge
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.settings import UsageLimits
from system.free_resources import Memory
from tests.apps.conftest import AppClient
from tests.peft_adapters import write_adapter
from training.preflight.merge_needs import NO_DISK_STATUS, NO_MEMORY_STATUS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def adapted(services: Services, tiny_model: Path, tmp_path: Path) -> None:
    """Add the adapter 'adapted' of 'tiny'."""
    services.models.add(write_adapter(tiny_model, tmp_path / "a"), "adapted", base_id="tiny")


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that all merges wait for, which then fail."""
    event = threading.Event()

    def hold(*_: Any) -> None:
        assert event.wait(60)
        raise OSError("held")

    monkeypatch.setattr(model_merge, "run_merge", hold)
    yield event
    event.set()


async def merge(client: httpx.AsyncClient, model_id: str = "merged") -> httpx.Response:
    return await client.post("/v1/models/adapted/merge", json={"model": model_id})


async def wait_for_end(services: Services, client: httpx.AsyncClient) -> dict[str, Any]:
    """Return the newest merge of the adapter once none has a scratch folder any more."""
    for _ in range(1200):
        if not list(services.layout.models.glob(".merge-*")):
            break
        await anyio.sleep(0.05)
    found: dict[str, Any] = (await client.get("/v1/models/adapted/merges")).json()["data"][0]
    return found


async def test_adapter_is_merged_into_a_complete_model(
    services: Services, client: httpx.AsyncClient
) -> None:
    answer = await merge(client)
    assert answer.status_code == 202, answer.text
    assert (
        answer.json().items()
        >= {
            "id": "merged",
            "object": "model.merge",
            "adapter": "adapted",
            "status": "merging",
            "error": None,
        }.items()
    )
    ended = await wait_for_end(services, client)
    assert (ended["status"], ended["error"]) == ("succeeded", None)
    merged = services.models.get("merged")
    assert not merged.is_adapter
    assert json.loads((merged.path / "verification.json").read_text())["passed"]
    lineage = (await client.get("/v1/models/merged/lineage")).json()
    assert lineage["base_model"] == "tiny"
    assert lineage["merged_adapter"]["id"] == "adapted"
    assert list(services.layout.models.glob(".merge*")) == []
    services.models.delete("adapted")  # nothing holds it any more


@pytest.mark.parametrize(
    ("adapter_id", "model_id", "status", "told"),
    [
        ("tiny", "merged", 400, "^'tiny' is a complete model, which needs no merging; expected"),
        ("nope", "merged", 404, "^no model or alias is called 'nope'"),
        ("adapted", "tiny", 409, "^'tiny' is published already"),
        ("adapted", "../x", 400, "x"),
        ("adapted", "", 400, "model"),
    ],
)
async def test_merges_that_cannot_be_made_are_refused(
    services: Services,
    client: httpx.AsyncClient,
    adapter_id: str,
    model_id: str,
    status: int,
    told: str,
) -> None:
    answer = await client.post(f"/v1/models/{adapter_id}/merge", json={"model": model_id})
    assert answer.status_code == status
    assert re.search(told, answer.json()["error"]["message"])
    assert len(services.models.list_models()) == 2
    assert (await client.get("/v1/models/adapted/merges")).json()["data"] == []


async def test_failed_merge_names_the_reason_and_publishes_nothing(
    services: Services, client: httpx.AsyncClient
) -> None:
    path = services.models.get("adapted").path / "adapter_config.json"
    path.write_text(path.read_text().replace('"r": 4', '"r": 8'))
    assert (await merge(client)).status_code == 202
    ended = await wait_for_end(services, client)
    assert (ended["status"], ended["error"]["status"]) == ("failed", 409)
    assert ended["error"]["code"] == "merge_failed"
    message = ended["error"]["message"]
    assert message.startswith("adapter 'adapted' was not merged: adapter 'adapted' cannot be")
    assert str(services.layout.root) not in message
    assert services.models.find("merged") is None
    assert (await merge(client)).status_code == 202  # it can be tried again
    await wait_for_end(services, client)


async def test_rejected_model_is_not_said_to_be_kept(
    services: Services, client: httpx.AsyncClient
) -> None:
    path = services.models.get("adapted").path / "adapter_config.json"
    path.write_text(path.read_text().replace('"use_dora": false', '"use_dora": true'))
    await merge(client)
    message = (await wait_for_end(services, client))["error"]["message"]
    assert "the merged model is not correct: weights that are not those of the base" in message
    assert "moved" not in message
    assert "training" not in message


async def test_id_is_reserved_while_a_merge_lasts(
    services: Services, client: httpx.AsyncClient, release: threading.Event
) -> None:
    assert (await merge(client)).status_code == 202
    again = await merge(client)
    assert again.status_code == 409
    message = again.json()["error"]["message"]
    assert message == "'merged' is being made by a merge of an adapter"
    with pytest.raises(Exception, match="^'merged' is being made by a merge of an adapter$"):
        check_new_model(services.layout, services.runs, "merged")  # as publish_checkpoint does
    assert (await client.put("/v1/aliases/merged", json={"model": "tiny"})).status_code == 409
    assert (await client.delete("/v1/models/adapted")).status_code == 409
    merges = (await client.get("/v1/models/adapted/merges")).json()["data"]
    assert [(one["id"], one["status"]) for one in merges] == [("merged", "merging")]
    release.set()
    ended = await wait_for_end(services, client)
    assert (ended["status"], ended["error"]["status"]) == ("failed", 500)
    check_new_model(services.layout, services.runs, "merged")


async def test_queue_of_merges_is_bounded(
    services: Services, client: httpx.AsyncClient, release: threading.Event
) -> None:
    for number in range(4):
        assert (await merge(client, f"m{number}")).status_code == 202
    answer = await merge(client, "m4")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "60"
    assert answer.json()["error"]["message"].startswith("4 adapters are being merged; ")
    release.set()
    await wait_for_end(services, client)
    assert len((await client.get("/v1/models/adapted/merges")).json()["data"]) == 4


async def test_space_is_checked_again_before_the_work_starts(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = services.model_sizes.measure()
    base_bytes = services.model_sizes.measure_model("tiny")
    small = replace(services, limits=UsageLimits(max_model_store_bytes=size + base_bytes))
    published: list[bool] = []

    def publish(*_: Any) -> int:
        """Let another request take the space after the first check."""
        if not published:
            published.append(True)
            services.models.add(services.models.get("tiny").path, "other")
        return 1

    monkeypatch.setattr(model_merge, "check_merge_memory", publish)
    async with AppClient(build_http(small, api_key=None), "http://127.0.0.1:8000") as client:
        assert (await merge(client)).status_code == 202
        ended = await wait_for_end(services, client)
    assert (ended["error"]["status"], ended["error"]["code"]) == (507, "model_store_full")


async def test_merge_without_enough_memory_is_refused(
    client: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_process, "measure_host_memory", lambda: Memory(2**31, 10**9))
    answer = await merge(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "out_of_memory")
    message = answer.json()["error"]["message"]
    assert re.match(
        "adapter 'adapted' was not merged: merging needs about 1.1 GB of memory, and "
        "1.0 GB are free; ",
        message,
    )
    assert list(services.layout.models.glob(".merge*")) == []


async def test_adapter_whose_base_is_gone_is_refused_for_good(
    client: httpx.AsyncClient, services: Services, tmp_path: Path
) -> None:
    services.models.get("tiny").path.rename(tmp_path / "gone")
    answer = await merge(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "base_missing")
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize(
    ("status", "error", "expected", "code"),
    [
        (NO_DISK_STATUS, "failed: x", 507, "disk_full"),
        (NO_MEMORY_STATUS, "failed: x", 507, "out_of_memory"),
        (-9, "", 507, "out_of_memory"),
        (1, "Traceback", 500, "merge_failed"),
        (-11, "", 500, "merge_failed"),
        (1, "failed: in {root}/models/x", 409, "merge_failed"),
    ],
)
async def test_end_of_the_process_has_its_status(
    services: Services,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    error: str,
    expected: int,
    code: str,
) -> None:
    root = services.layout.root

    def end(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, status, stderr=error.format(root=root))

    monkeypatch.setattr(subprocess, "run", end)
    await merge(client)
    found = (await wait_for_end(services, client))["error"]
    assert (found["status"], found["code"]) == (expected, code)
    assert str(root) not in found["message"]


async def test_merge_that_hangs_is_ended(
    services: Services, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_process, "find_merge_timeout", lambda _: 0.05)
    await merge(client)
    found = (await wait_for_end(services, client))["error"]
    assert (found["status"], found["code"]) == (504, "merge_timeout")


async def test_merge_of_a_killed_server_is_reported_as_failed(
    services: Services, client: httpx.AsyncClient, release: threading.Event
) -> None:
    await merge(client)
    release.set()
    await wait_for_end(services, client)
    note = services.layout.store.merges / "merged.json"
    lost = {**json.loads(note.read_text()), "status": "merging", "error": None}
    note.write_text(json.dumps(lost))
    found = (await client.get("/v1/models/adapted/merges")).json()["data"][0]
    assert (found["status"], found["error"]["code"]) == ("failed", "merge_lost")
