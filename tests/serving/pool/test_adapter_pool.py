"""Adapters are loaded on their base model's engine, and both stay in memory while one is used."""

import asyncio
import json
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from serving.errors import EngineDeadError, OverloadedError
from serving.loading.memory import estimate_adapter_memory
from serving.store.lineage import Lineage
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.peft_adapters import generate_with_peft, write_adapter
from tests.serving.conftest import (
    find_engine_processes,
    find_serving_model,
    has_alias,
    list_ids,
    list_outcomes,
    make_chat,
    run_replica,
    stream_chat,
    wait_until,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def adapted(store: ModelStore, tiny_model: Path, tmp_path: Path) -> ModelStore:
    """A store with a base model and two adapters of it."""
    store.add(tiny_model, "base")
    for seed, model_id in enumerate(("one", "two")):
        adapter = write_adapter(tiny_model, tmp_path / model_id, seed=seed)
        store.add(adapter, model_id, base_id="base")
    return store


async def test_adapters_of_one_base_share_its_process(
    adapted: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    async with run_replica(layout, max_loaded_models=1) as replica:
        answers = await asyncio.gather(
            *(stream_chat(replica, name, temperature=0) for name in ("one", "base", "two") * 2)
        )
        assert [answer.origin.model_id for answer in answers] == ["one", "base", "two"] * 2
        assert await list_ids(replica) == ["base", "one", "two"]
        assert len(find_engine_processes()) == 1
        (engine,) = (one.engine for one in replica._models.list_loaded() if one.stored.id == "base")
        ids = await engine.prompts.encode_chat([{"role": "user", "content": "fox"}])
        for answer in answers:
            is_base = answer.origin.model_id == "base"
            path = None if is_base else adapted.get(answer.origin.model_id).path
            expected = generate_with_peft(tiny_model, path, ids, 20)
            assert answer.text == engine.prompts.decode(expected)
    assert answers[0].origin != answers[2].origin


async def test_base_is_not_evicted_while_its_adapter_is_used(
    adapted: ModelStore, layout: StorageLayout, other_model: Path
) -> None:
    adapted.add(other_model, "other")
    async with run_replica(layout, max_loaded_models=1) as replica:
        async with aclosing(replica.stream(make_chat("one", max_tokens=100))) as items:
            await anext(items)
            with pytest.raises(OverloadedError, match="^model 'other' is not loaded, "):
                await stream_chat(replica, "other")
        assert await find_serving_model(replica, "other") == "other"
        assert await list_ids(replica) == ["other"]  # the adapters were evicted with their base
        assert await find_serving_model(replica, "two") == "two"
        assert await list_ids(replica) == ["base", "two"]


async def test_latest_moves_from_a_model_to_its_adapter_and_back(
    adapted: ModelStore, layout: StorageLayout
) -> None:
    adapted.point_alias("latest", "base")
    async with run_replica(layout, max_loaded_models=1) as replica:
        assert await find_serving_model(replica, "latest") == "base"
        for model_id in ("one", "two", "base"):
            adapted.point_alias("latest", model_id)
            await wait_until(partial(has_alias, replica, model_id))
            assert await find_serving_model(replica, "latest") == model_id
        assert len(find_engine_processes()) == 1
    assert list_outcomes(layout) == ["moved"] * 3


async def test_alias_of_an_adapter_keeps_its_base_loaded(
    adapted: ModelStore, layout: StorageLayout, other_model: Path
) -> None:
    adapted.point_alias("latest", "one")
    for model_id in ("x", "y"):
        adapted.add(other_model, model_id)
    async with run_replica(layout, max_loaded_models=2) as replica:
        for model_id in ("x", "y", "x"):
            await stream_chat(replica, model_id)
        assert await list_ids(replica) == ["base", "one", "x"]


async def test_hand_over_to_an_adapter_waits_for_the_memory_of_its_base(
    adapted: ModelStore, layout: StorageLayout, other_model: Path
) -> None:
    """The old model is drained first if the adapter's base does not fit beside it."""
    adapted.add(other_model, "other")
    adapted.point_alias("latest", "other")
    async with run_replica(layout) as replica:
        (loaded,) = replica._models.list_loaded()
        adapter_bytes = estimate_adapter_memory(
            *(adapted.get(name).path for name in ("one", "base"))
        )
        max_bytes = loaded.size_bytes + adapter_bytes + 1000
    async with run_replica(layout, max_loaded_bytes=max_bytes) as replica:
        assert await find_serving_model(replica, "latest") == "other"
        adapted.point_alias("latest", "one")
        await wait_until(lambda: has_alias(replica, "one"))
        assert await list_ids(replica) == ["base", "one"]
    assert "draining" in list_outcomes(layout)


async def test_killed_process_is_started_again_for_an_adapter(
    adapted: ModelStore, layout: StorageLayout
) -> None:
    async with run_replica(layout) as replica:
        before = await stream_chat(replica, "one", temperature=0)
        (process,) = find_engine_processes()
        process.kill()
        process.wait()

        async def answers_again() -> bool:
            try:
                return (await stream_chat(replica, "one", temperature=0)).text == before.text
            except EngineDeadError:
                return False

        await wait_until(answers_again)
        assert await list_ids(replica) == ["base", "one"]


async def test_adapter_of_a_replaced_base_is_refused(
    adapted: ModelStore, layout: StorageLayout
) -> None:
    path = adapted.get("one").path / "lineage.json"
    lineage = Lineage.model_validate(json.loads(path.read_text()))
    changed = lineage.model_copy(update={"base_model_revision": "sha256:0"})
    path.write_text(changed.model_dump_json())
    durable.seal_directory(path.parent)
    async with run_replica(layout) as replica:
        with pytest.raises(EngineDeadError, match="^adapter 'one' "):
            await stream_chat(replica, "one")
        assert await find_serving_model(replica, "two") == "two"
