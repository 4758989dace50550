"""Replicas that share a machine and follow the same alias."""

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest

from serving.engine.engine import Engine
from serving.generator import GeneratorReplica
from serving.settings import EngineSettings
from serving.store.alias_events import HandoverLog
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from storage.locks import take_turn
from tests.serving.conftest import run_replica, wait_until

_LOAD_S = 0.3


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The start and end time of each load, which is slowed down."""
    spans: list[tuple[float, float]] = []

    start = Engine.start

    def start_slowly(path: Path, settings: EngineSettings) -> Engine:
        started = time.monotonic()
        engine = start(path, settings)
        time.sleep(_LOAD_S)
        spans.append((started, time.monotonic()))
        return engine

    monkeypatch.setattr(Engine, "start", start_slowly)
    return spans


def test_replicas_move_one_after_the_other(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    loads: list[tuple[float, float]],
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout) as first, run_replica(layout) as second:
            loads.clear()
            store.point_alias("latest", "new")
            await wait_until(lambda: _answers(first, "new"))
            await wait_until(lambda: _answers(second, "new"))

    asyncio.run(scenario())
    (_, first_ended), (second_started, _) = sorted(loads)
    assert second_started >= first_ended


def test_who_has_to_wait_follows_the_alias_where_it_went_meanwhile(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "between")
    store.add(other_model, "new")
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            with take_turn(layout.store.handover_lock(socket.gethostname())):
                store.point_alias("latest", "between")
                await asyncio.sleep(0.2)
                store.point_alias("latest", "new")
                await asyncio.sleep(0.2)
                assert await _answers(replica, "old")
            await wait_until(lambda: _answers(replica, "new"))

    asyncio.run(scenario())
    assert [event.model for event in HandoverLog(layout.store.handovers).read("latest")] == ["new"]


async def _answers(replica: GeneratorReplica, model_id: str) -> bool:
    loaded = await replica.loaded_models()
    return any(one["model_id"] == model_id and "latest" in one["aliases"] for one in loaded)


def test_a_damaged_alias_stops_no_generator(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            content = durable.read_json(layout.store.aliases)
            for path in layout.root.glob("aliases*.json"):
                durable.write_json(path, {**content, "spoiled": {"history": []}, "other": None})
            (layout.models / "stray").write_text("a plain file")
            store.point_alias("latest", "new")
            await wait_until(lambda: _answers(replica, "new"))
            for path in layout.root.glob("aliases*.json"):
                path.write_text("{")
            await wait_until(lambda: "they stay as they were" in caplog.text)
            await replica.check_health()
            assert await _answers(replica, "new"), "it let its model go"
            layout.store.aliases.write_text(json.dumps(content))
            await wait_until(lambda: _answers(replica, "old"))

    asyncio.run(scenario())
