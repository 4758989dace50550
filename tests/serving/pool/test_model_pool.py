"""Models are loaded on demand, kept while they are used, and evicted when they are idle."""

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import pytest

from serving.engine.remote import inspect_in_fork
from serving.errors import (
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.generator import GeneratorReplica
from serving.loading.memory import estimate_memory
from serving.settings import EngineSettings
from serving.store.handover_log import HandoverLog
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.damage import damage
from tests.serving.conftest import (
    StreamedChat,
    find_engine_processes,
    find_serving_model,
    has_alias,
    list_ids,
    list_outcomes,
    make_chat,
    publish_broken,
    run_replica,
    stream_chat,
    wait_until,
)

pytestmark = pytest.mark.anyio


async def test_concurrent_requests_share_one_load(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "base")
    async with run_replica(layout) as replica:
        answers = await asyncio.gather(*(stream_chat(replica, "base") for _ in range(6)))
        assert len({answer.text for answer in answers}) == 1
        assert await list_ids(replica) == ["base"]


async def test_least_recently_used_idle_model_is_evicted_first(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b", "c", "d"):
        store.add(tiny_model, model_id)
    store.point_alias("latest", "a")
    async with run_replica(layout, max_loaded_models=3) as replica:
        for model_id in ("b", "c", "b", "d"):
            await stream_chat(replica, model_id)
        # "a" is the least recently used model, but an alias serves it.
        assert await list_ids(replica) == ["a", "b", "d"]


async def test_busy_models_are_kept_and_another_model_is_refused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
    async with run_replica(layout, max_loaded_models=1) as replica:
        async with aclosing(replica.stream(make_chat("a", max_tokens=100))) as items:
            await anext(items)
            with pytest.raises(OverloadedError, match="^model 'b' is not loaded, ") as caught:
                await stream_chat(replica, "b")
            assert caught.value.retry_after_s > 0
        assert await find_serving_model(replica, "b") == "b"
        assert await list_ids(replica) == ["b"]


async def test_dead_engine_is_evicted_and_loaded_again_on_demand(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
    async with run_replica(layout) as replica:
        await stream_chat(replica, "a")
        (dead,) = find_engine_processes()
        await stream_chat(replica, "b")
        (other,) = [process for process in find_engine_processes() if process != dead]
        dead.kill()

        async def is_evicted() -> bool:
            return await list_ids(replica) == ["b"]

        await wait_until(is_evicted)
        await replica.check_health()
        assert await find_serving_model(replica, "a") == "a"
        assert await list_ids(replica) == ["a", "b"]
        assert other.is_running(), "the engine of the other model was replaced"


def _estimate(path: Path) -> int:
    """Return the bytes that a model takes, plus 1 MB, as measurements of its tokenizer vary."""
    return estimate_memory(inspect_in_fork(path), EngineSettings()) + 1_000_000


async def test_memory_limits_number_of_loaded_models(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b", "c"):
        store.add(tiny_model, model_id)
    two_models = 2 * _estimate(tiny_model) + 1
    async with run_replica(layout, max_loaded_bytes=two_models) as replica:
        for model_id in ("a", "b", "c"):
            await stream_chat(replica, model_id)
        assert await list_ids(replica) == ["b", "c"]


async def test_model_larger_than_memory_is_refused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    async with run_replica(layout, max_loaded_bytes=10) as replica:
        with pytest.raises(
            InvalidRequestError, match="^model 'a' needs .* and models may take 0.00 GB here$"
        ) as caught:
            await stream_chat(replica, "a")
        assert caught.value.code == "model_too_large"


async def test_leased_model_is_not_deleted_and_deleted_model_is_evicted(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
    async with run_replica(layout) as replica:
        async with aclosing(replica.stream(make_chat("a", max_tokens=100))) as items:
            await anext(items)
            with pytest.raises(ModelInUseError, match="^model 'a' is loaded by a generator "):
                store.delete("a")
        await stream_chat(replica, "b")
        assert await list_ids(replica) == ["a", "b"]
        store.delete("a")

        async def is_evicted() -> bool:
            return await list_ids(replica) == ["b"]

        await wait_until(is_evicted)
        with pytest.raises(ModelNotFoundError, match="^no model or alias is called 'a'; "):
            await stream_chat(replica, "a")


async def test_new_model_with_deleted_id_is_served(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "a")
    # It polls for deleted models so rarely that a request comes first.
    async with run_replica(layout, alias_poll_s=600.0) as replica:
        before = await stream_chat(replica, "a")
        store.delete("a")
        store.add(other_model, "a")
        after = await stream_chat(replica, "a")
        assert before.origin.system_fingerprint != after.origin.system_fingerprint
        assert after.origin.system_fingerprint == store.get("a").fingerprint
        assert before.text != after.text


def run_with_memory_for_one(
    layout: StorageLayout, model: Path
) -> AbstractAsyncContextManager[GeneratorReplica]:
    """Run a replica whose memory does not fit an old and a new model together."""
    return run_replica(layout, max_loaded_bytes=_estimate(model) + 1)


async def test_running_requests_end_before_former_model_is_evicted(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    async with run_with_memory_for_one(layout, tiny_model) as replica:
        items = replica.stream(make_chat("latest", max_tokens=100))
        _, origin = await anext(items)
        store.point_alias("latest", "new")
        await wait_until(lambda: list_outcomes(layout) == ["draining"])
        queued = asyncio.create_task(stream_chat(replica, "latest"))
        rest = [piece async for some, _ in items for piece in some]
        assert origin is not None
        assert origin.model_id == "old"
        assert rest[-1].finish_reason is not None, "the answer is incomplete"
        answer: StreamedChat = await queued
        assert answer.origin.model_id == "new", (
            "the queued request was not answered by the new model"
        )
        assert await find_serving_model(replica, "old") == "old"
        assert await list_ids(replica) == ["old"]
    assert list_outcomes(layout) == ["draining", "moved"]
    message = HandoverLog(layout.store.handovers).read("latest")[0].message
    assert "there is no room for it" in message


async def test_process_of_evicted_model_ends(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    async with run_with_memory_for_one(layout, tiny_model) as replica:
        (process,) = find_engine_processes()
        store.point_alias("latest", "new")
        await wait_until(lambda: has_alias(replica, "new"))
        assert not process.is_running()
        assert len(find_engine_processes()) == 1


async def test_alias_waits_while_another_alias_needs_memory(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    store.point_alias("stable", "old")
    async with run_with_memory_for_one(layout, tiny_model) as replica:
        assert await find_serving_model(replica, "stable") == "old"
        store.point_alias("latest", "new")
        await wait_until(lambda: list_outcomes(layout) == ["postponed"])
        message = HandoverLog(layout.store.handovers).read("latest")[0].message
        assert "'stable' still answers with 'old'" in message
        assert await find_serving_model(replica, "latest") == "old"
        store.remove_alias("stable")
        await wait_until(lambda: has_alias(replica, "new"))
        (loaded,) = await replica.loaded_models()
        assert loaded.aliases == ("latest",)
    assert list_outcomes(layout) == ["postponed", "draining", "moved"]


@pytest.mark.parametrize(
    ("changes", "outcomes"),
    [
        ({"generation": {"early_stopping": 5}}, ["draining", "refused"]),
        ({"vocab_size": 7}, ["refused"]),
    ],
    ids=["fails to load", "fails its inspection"],
)
async def test_former_model_is_loaded_again_when_new_one_fails(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    changes: dict[str, Any],
    outcomes: list[str],
) -> None:
    store.add(tiny_model, "old")
    publish_broken(store, layout, tiny_model, "broken", **changes)
    store.point_alias("latest", "old")
    async with run_with_memory_for_one(layout, tiny_model) as replica:
        store.point_alias("latest", "broken")
        await wait_until(lambda: "refused" in list_outcomes(layout))
        assert await list_ids(replica) == ["old"]
        assert await find_serving_model(replica, "latest") == "old"
    assert list_outcomes(layout) == outcomes


@pytest.mark.parametrize("fault", ["flipped", "cut"])
async def test_former_model_is_not_drained_for_damaged_model(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    fault: str,
) -> None:
    store.add(tiny_model, "old")
    damage(store.add(other_model, "damaged").path / "model.safetensors", fault)
    store.point_alias("latest", "old")
    async with run_with_memory_for_one(layout, tiny_model) as replica:
        store.point_alias("latest", "damaged")
        await wait_until(lambda: list_outcomes(layout) == ["refused"])
        assert await list_ids(replica) == ["old"]
        assert await find_serving_model(replica, "latest") == "old"
    assert list_outcomes(layout) == ["refused"]
