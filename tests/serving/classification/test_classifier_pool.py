"""Loading and eviction of classifiers, with a loader that the test controls."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.classification.classifier_pool import ClassifierPool
from serving.errors import EngineDeadError, InvalidRequestError
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(layout: StorageLayout, classifier_folder: Path) -> ModelStore:
    store = ModelStore(layout)
    for name in ("a", "b", "c"):
        store.add(classifier_folder, name)
    return store


def make_pool(
    max_loaded: int = 2,
    max_bytes: int = 1 << 30,
    load: Callable[[StoredModel], Any] = StoredModel.exists,
) -> ClassifierPool:
    return ClassifierPool(load, max_loaded, max_bytes)


async def test_least_recently_used_is_evicted(models: ModelStore) -> None:
    pool = make_pool()
    for name in ("a", "b", "a", "c"):
        await pool.get(models.get(name))
    assert pool.list_loaded() == ["a", "c"]


async def test_size_limits_what_is_loaded(models: ModelStore) -> None:
    size = (await make_pool().get(models.get("a"))).size_bytes
    pool = make_pool(max_loaded=3, max_bytes=size + 1)
    for name in ("a", "b"):
        await pool.get(models.get(name))
    assert pool.list_loaded() == ["b"]
    with pytest.raises(InvalidRequestError, match="model 'a' needs .* classifiers may take"):
        await make_pool(max_bytes=size - 1).get(models.get("a"))


async def test_requests_share_one_loading(models: ModelStore) -> None:
    loaded: list[StoredModel] = []
    pool = make_pool(load=loaded.append)
    first = pool.start_loading(models.get("a"))
    assert pool.start_loading(models.get("a")) is first
    await first
    assert len(loaded) == 1


async def test_model_beside_is_kept_while_another_is_loaded(models: ModelStore) -> None:
    ready = threading.Event()
    pool = make_pool(max_loaded=1, load=lambda model: model.id == "a" or ready.wait(10))
    old = models.get("a")
    await pool.get(old)
    task = pool.start_loading(models.get("b"), beside=old)
    await asyncio.sleep(0.1)
    assert not task.done()
    assert pool.find(old) is not None
    ready.set()
    await task
    assert pool.list_loaded() == ["b"]


async def test_failure_is_not_retried_at_once(models: ModelStore) -> None:
    calls: list[StoredModel] = []

    def fail(model: StoredModel) -> Any:
        calls.append(model)
        raise EngineDeadError("broken")

    pool = make_pool(load=fail)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="broken"):
            await pool.get(models.get("a"))
    assert len(calls) == 1


async def test_damaged_model_is_not_loaded(models: ModelStore) -> None:
    model = models.get("a")
    config = model.path / "config.json"
    config.chmod(0o600)
    config.write_text(config.read_text() + " ")
    with pytest.raises(EngineDeadError, match="model 'a' is not loaded"):
        await make_pool().get(model)
