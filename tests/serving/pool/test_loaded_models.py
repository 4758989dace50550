"""Eviction of engines from memory."""

import asyncio
from pathlib import Path

from serving.engine.engine import Engine
from serving.pool.loaded_models import LoadedModel, LoadedModels
from serving.settings import EngineSettings
from serving.store.model_store import ModelStore
from tests.serving.conftest import find_engine_processes


def test_evicted_engine_is_closed_when_event_loop_ends(store: ModelStore, tiny_model: Path) -> None:
    model = store.add(tiny_model, "a")
    models = LoadedModels()
    models.add(LoadedModel(model, Engine.start(model.path, EngineSettings()), 1))
    (process,) = find_engine_processes()

    async def evict() -> None:
        models.evict("a")

    asyncio.run(evict())
    assert not process.is_running()
    assert models.list_all() == []


def test_leased_models_are_not_idle_and_pinned_ones_are_last(
    store: ModelStore, tiny_model: Path
) -> None:
    engine = Engine.start(tiny_model, EngineSettings())
    models = LoadedModels()
    for number, model_id in enumerate(("pinned", "leased", "newer", "older")):
        model = store.add(tiny_model, model_id)
        models.add(LoadedModel(model, engine, 1, last_used=-number))
    models.pin(["pinned"])
    leased = store.get("leased")
    models.add_lease(leased)
    assert [idle.stored.id for idle in models.list_idle()] == ["older", "newer", "pinned"]
    models.end_lease(leased)
    assert [idle.stored.id for idle in models.list_idle()] == [
        "older",
        "newer",
        "leased",
        "pinned",
    ]
    engine.close()
