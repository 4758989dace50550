"""Chains of fine-tuned models in model lists, and lineages of earlier and newer releases."""

import json
from pathlib import Path

import httpx
import pytest

from apps.bundled import DEMONSTRATION_MODEL
from apps.fine_tuning.index.run_lookup import has_published, name_model
from apps.fine_tuning.queue import RunQueue
from apps.http_api.dependencies import Services
from serving.store.model_store import ModelStore
from storage import durable
from tests.apps.conftest import NotedJobs, copy_model, create_run
from tests.model_chain import LINEAGE_NAME, count_opened, write_chain, write_nested_lineage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_chain_of_1500_fine_tunes_is_listed(
    client: httpx.AsyncClient, services: Services, tiny_model: Path
) -> None:
    services.models.add(tiny_model, DEMONSTRATION_MODEL)
    names = write_chain(services.layout, DEMONSTRATION_MODEL, 1_500)
    sizes = [(services.layout.model(name) / LINEAGE_NAME).stat().st_size for name in names]
    assert max(sizes) < 4_000
    listed = {m["id"]: m for m in (await client.get("/v1/models")).json()["data"]}
    assert listed.keys() == {"tiny", DEMONSTRATION_MODEL, *names}
    for number, name in enumerate(names):
        assert listed[name]["run_id"] == f"run-{number:05d}"
        assert listed[name]["demonstration"]
        assert not listed[name]["base"]
    assert listed["tiny"]["base"]
    assert not listed["tiny"]["demonstration"]
    assert (await client.get(f"/v1/models/{names[-1]}")).json() == listed[names[-1]]
    lineage = (await client.get(f"/v1/models/{names[-1]}/lineage")).json()
    assert lineage["parent"]["run_id"] == "run-01498"
    assert lineage["root"]["base_model"] == DEMONSTRATION_MODEL


@pytest.mark.parametrize("is_chained", [False, True])
async def test_model_list_reads_each_lineage_once(
    client: httpx.AsyncClient, services: Services, is_chained: bool
) -> None:
    names = write_chain(services.layout, "tiny", 300)
    if not is_chained:
        for name in names:
            file = services.layout.model(name) / LINEAGE_NAME
            changed = {**json.loads(file.read_text()), "base_model": "tiny", "parent": None}
            file.write_text(json.dumps(changed))
    with count_opened(LINEAGE_NAME) as opened:
        assert len((await client.get("/v1/models")).json()["data"]) == 301
    assert len(opened) == len(set(opened)) == 300
    if is_chained:
        with count_opened(LINEAGE_NAME) as opened:
            await client.get("/v1/models")
            await client.get(f"/v1/models/{names[-1]}")
        assert opened == []


@pytest.mark.parametrize("depth", [1, 3, 199, 200, 1_000])
async def test_nested_lineage_of_release_0_1_is_shown_flat(
    client: httpx.AsyncClient, services: Services, depth: int
) -> None:
    write_nested_lineage(services.layout.model("old"), depth, root="tiny")
    (shown,) = [m for m in (await client.get("/v1/models")).json()["data"] if m["id"] == "old"]
    assert (shown["run_id"], shown["checkpoint_step"]) == (f"run-{depth:05d}", 7)
    assert not shown["base"]
    assert services.models.reader.find_root(services.models.get("old")) == "tiny"
    assert has_published(services.models, f"run-{depth:05d}", "old")
    lineage = (await client.get("/v1/models/old/lineage")).json()
    assert lineage["run_id"] == f"run-{depth:05d}"
    if depth > 1:
        assert lineage["root"]["base_model"] == "tiny"
        assert lineage["parent"]["run_id"] == f"run-{depth - 1:05d}"
        assert "parent" not in lineage["parent"]


async def test_unreadable_lineage_is_reported_and_does_not_hide_model(
    client: httpx.AsyncClient,
    services: Services,
    tiny_model: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    services.models.add(tiny_model, "newer")
    file = services.layout.model("newer") / LINEAGE_NAME
    for content, reason in (("{", "not valid JSON"), ('{"format_version": "2.0"}', "is 2.0, and")):
        file.write_text(content)
        caplog.clear()
        for _ in range(3):
            models = (await client.get("/v1/models")).json()["data"]
            (shown,) = [model for model in models if model["id"] == "newer"]
            assert (shown["base"], shown["run_id"]) == (False, None)
        answer = await client.get("/v1/models/newer/lineage")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "lineage_unreadable"
        assert reason in answer.json()["error"]["message"]
        assert str(services.layout.root) not in answer.text
        logged = [m for m in caplog.messages if m.startswith("the lineage of model 'newer': ")]
        assert len(logged) == 1, "the same error is logged repeatedly"
    assert "damaged" not in answer.text
    assert "damaged" not in logged[0]


async def test_run_with_unreadable_lineage_of_published_model_fails(
    queue: RunQueue, services: Services, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    model_id = name_model(run.read_record())
    durable.write_json(copy_model(tiny_model, run.model) / LINEAGE_NAME, {"run_id": run.path.name})
    model = ModelStore(services.layout).publish(run.model, model_id)
    (model.path / LINEAGE_NAME).write_text('{"format_version": "2.0"}')
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    record = run.read_record()
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.code == "lineage_unreadable"
    assert "its format is 2.0" in record.error.message
    assert services.models.find(model_id) is not None
