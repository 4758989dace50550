"""Models are loaded on demand, kept while they are used, and evicted when they are idle."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from serving.engine.remote import inspect_in_fork
from serving.errors import (
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.loading.memory import estimate_memory
from serving.settings import EngineSettings
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.serving.conftest import (
    find_engine_processes,
    find_serving_model,
    list_ids,
    make_chat,
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


async def test_busy_models_are_kept_and_one_more_is_refused(
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
        assert other.is_running(), "the other engine was not replaced"


def _estimate(path: Path) -> int:
    """Return the bytes that a model takes, plus 1 MB, as measurements of its tokenizer vary."""
    return estimate_memory(inspect_in_fork(path), EngineSettings()) + 1_000_000


async def test_memory_limits_the_number_of_loaded_models(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b", "c"):
        store.add(tiny_model, model_id)
    two_models = 2 * _estimate(tiny_model) + 1
    async with run_replica(layout, max_loaded_bytes=two_models) as replica:
        for model_id in ("a", "b", "c"):
            await stream_chat(replica, model_id)
        assert await list_ids(replica) == ["b", "c"]


async def test_model_larger_than_the_memory_is_refused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    async with run_replica(layout, max_loaded_bytes=10) as replica:
        with pytest.raises(
            InvalidRequestError, match="^model 'a' needs .* and models may take 0.00 GB here$"
        ) as caught:
            await stream_chat(replica, "a")
        assert caught.value.code == "model_too_large"


async def test_leased_model_is_not_deleted_and_a_deleted_one_is_evicted(
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


async def test_new_model_with_the_id_of_a_deleted_one_is_served(
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
