"""Aliases that move while generators serve them, also of replicas that share a machine."""

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest

from serving import handover_outcomes
from serving.engine.engine import Engine
from serving.errors import EngineDeadError, EngineLostError, ModelInUseError, ModelNotFoundError
from serving.settings import EngineSettings
from serving.store.aliases import Alias
from serving.store.handover_log import HandoverLog
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from storage.locks import lock_exclusive
from tests.damage import damage
from tests.serving.conftest import (
    DEADLINE_S,
    find_serving_model,
    has_alias,
    list_ids,
    list_outcomes,
    publish_broken,
    run_replica,
    stream_chat,
    wait_until,
)

pytestmark = pytest.mark.anyio


class Polls:
    """A counter of the reads of the aliases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_started = 0
        read_aliases = ModelStore.read_aliases

        def read(store: ModelStore) -> dict[str, Alias]:
            self.num_started += 1
            return read_aliases(store)

        monkeypatch.setattr(ModelStore, "read_aliases", read)

    async def wait_for_change(self) -> None:
        """Wait until the only replica has processed the aliases as they are now."""
        processed = self.num_started + 2  # the second poll starts after the first is processed
        await wait_until(lambda: self.num_started >= processed)

    def block(self, num_polls: int) -> None:
        """Block a thread until the aliases have been read so many more times."""
        deadline = time.monotonic() + DEADLINE_S
        last = self.num_started + num_polls
        while self.num_started < last:
            assert time.monotonic() < deadline, "the aliases are not polled"
            time.sleep(0.001)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    return Polls(monkeypatch)


async def test_hand_over_under_load_drops_no_request(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.point_alias("latest", "old")
    seen: list[str] = []
    texts: dict[str, set[str]] = {"old": set(), "new": set()}
    async with run_replica(layout, max_loaded_models=1) as replica:
        is_over = False

        async def send_requests() -> None:
            while not is_over:
                answer = await stream_chat(replica, "latest")
                assert answer.last.finish_reason is not None
                seen.append(answer.origin.model_id)
                texts[answer.origin.model_id].add(answer.text)

        clients = [asyncio.create_task(send_requests()) for _ in range(6)]
        try:
            await wait_until(lambda: len(seen) > 20)
            store.add(other_model, "new")
            store.point_alias("latest", "new")
            await wait_until(lambda: seen.count("new") > 20)

            async def is_alone() -> bool:
                return await list_ids(replica) == ["new"]

            # The old model is evicted as soon as no request uses it, even under load.
            await wait_until(is_alone)
        finally:
            is_over = True
            await asyncio.gather(*clients)
        assert (await replica.loaded_models())[0].aliases == ("latest",)
    # Every answer is entirely from one model, and none that starts after the hand-over is from old.
    assert len(texts["old"]) == len(texts["new"]) == 1
    assert texts["old"] != texts["new"]
    last_old = max(i for i, model_id in enumerate(seen) if model_id == "old")
    assert last_old - seen.index("new") < 6


async def test_former_model_serves_when_new_one_fails_to_load(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    publish_broken(store, layout, tiny_model, "broken")
    store.point_alias("latest", "old")
    async with run_replica(layout) as replica:
        store.point_alias("latest", "broken")
        await wait_until(lambda: list_outcomes(layout) == ["refused"])
        assert await find_serving_model(replica, "latest") == "old"
        await replica.check_health()
        with pytest.raises(EngineDeadError, match="^model 'broken' cannot be loaded: "):
            await stream_chat(replica, "broken")
        store.point_alias("latest", "new")
        await wait_until(lambda: has_alias(replica, "new"))
        assert await find_serving_model(replica, "latest") == "new"


@pytest.mark.parametrize(
    ("num_lost", "outcomes", "serving"),
    [(2, ["postponed", "moved"], "new"), (3, ["postponed", "refused"], "old")],
)
async def test_hand_over_is_retried_when_loading_process_ends(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_lost: int,
    outcomes: list[str],
    serving: str,
) -> None:
    monkeypatch.setattr(handover_outcomes, "LOSS_DELAY_S", 0.05)
    monkeypatch.setattr(handover_outcomes, "MAX_LOSSES", 3)
    store.add(tiny_model, "old")
    store.add(tiny_model, "new")
    store.point_alias("latest", "old")
    start = Engine.start
    lost_at: list[float] = []

    def start_or_lose(path: Path, settings: EngineSettings) -> Engine:
        if path.name == "new" and len(lost_at) < num_lost:
            lost_at.append(time.monotonic())
            raise EngineLostError("the process has ended")
        return start(path, settings)

    async with run_replica(layout) as replica:
        monkeypatch.setattr(Engine, "start", start_or_lose)
        store.point_alias("latest", "new")
        await wait_until(lambda: len(list_outcomes(layout)) == 2)
        assert len(lost_at) == num_lost
        assert lost_at[1] - lost_at[0] > 0.05
        assert list_outcomes(layout) == outcomes
        assert await find_serving_model(replica, "latest") == serving


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("flipped", r"^model 'damaged' is not loaded: .*'model\.safetensors' differs from its man"),
        ("cut", r"^model 'damaged' cannot be loaded: .*1 less than its header"),
        ("gone", r"^model 'damaged' .*model\.safetensors"),
    ],
)
async def test_damaged_model_is_not_loaded_and_former_model_serves(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    fault: str,
    reason: str,
) -> None:
    store.add(tiny_model, "old")
    damaged = store.add(other_model, "damaged")
    # A damaged weight, which would load without an error.
    damage(damaged.path / "model.safetensors", fault)
    store.point_alias("latest", "old")
    async with run_replica(layout) as replica:
        store.point_alias("latest", "damaged")
        await wait_until(lambda: list_outcomes(layout) == ["refused"])
        assert await find_serving_model(replica, "latest") == "old"
        with pytest.raises(EngineDeadError, match=reason):
            await stream_chat(replica, "damaged")


async def test_model_serving_an_alias_is_not_deleted(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    """This applies even while the alias points to another model, which cannot be loaded."""
    store.add(tiny_model, "old")
    publish_broken(store, layout, tiny_model, "broken")
    store.point_alias("latest", "old")
    async with run_replica(layout) as replica:
        store.point_alias("latest", "broken")
        await wait_until(lambda: list_outcomes(layout) == ["refused"])
        with pytest.raises(ModelInUseError, match="^model 'old' is loaded by a generator "):
            store.delete("old")
        assert await find_serving_model(replica, "latest") == "old"
    store.delete("old")


async def test_removed_alias_is_not_served(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    store.point_alias("stable", "a")
    async with run_replica(layout) as replica:
        assert await find_serving_model(replica, "stable") == "a"
        store.remove_alias("stable")

        async def is_removed() -> bool:
            (loaded,) = await replica.loaded_models()
            return not loaded.aliases

        await wait_until(is_removed)
        with pytest.raises(ModelNotFoundError, match="^no model or alias is called 'stable'; "):
            await stream_chat(replica, "stable")
        store.delete("a")


async def test_damaged_alias_file_does_not_stop_generator(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    async with run_replica(layout) as replica:
        content = durable.read_json(layout.store.aliases)
        for path in layout.root.glob("aliases*.json"):
            durable.write_json(path, {**content, "spoiled": {"history": []}, "other": None})
        (layout.models / "stray").write_text("a plain file")
        store.point_alias("latest", "new")
        await wait_until(lambda: has_alias(replica, "new"))
        for path in layout.root.glob("aliases*.json"):
            path.write_text("{")
        await wait_until(lambda: "they stay as they were" in caplog.text)
        await replica.check_health()
        assert await has_alias(replica, "new"), "the alias is not served"
        layout.store.aliases.write_text(json.dumps(content))
        await wait_until(lambda: has_alias(replica, "old"))


async def test_replicas_hand_over_one_after_another(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    polls: Polls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    loads: list[tuple[float, float]] = []
    start = Engine.start

    def start_while_both_poll(path: Path, settings: EngineSettings) -> Engine:
        started = time.monotonic()
        polls.block(6)  # the other replica has polled too, and could have started its load
        engine = start(path, settings)
        loads.append((started, time.monotonic()))
        return engine

    async with run_replica(layout) as first, run_replica(layout) as second:
        monkeypatch.setattr(Engine, "start", start_while_both_poll)
        store.point_alias("latest", "new")
        await wait_until(lambda: has_alias(first, "new"))
        await wait_until(lambda: has_alias(second, "new"))
    (_, first_ended), (second_started, _) = sorted(loads)
    assert second_started >= first_ended


async def test_replica_waiting_for_lock_follows_latest_move(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path, polls: Polls
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "between")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    async with run_replica(layout) as replica:
        with lock_exclusive(layout.store.handover_lock(socket.gethostname())):
            store.point_alias("latest", "between")
            await polls.wait_for_change()
            store.point_alias("latest", "new")
            await polls.wait_for_change()
            assert await has_alias(replica, "old")
        await wait_until(lambda: has_alias(replica, "new"))
    assert [event.model for event in HandoverLog(layout.store.handovers).read("latest")] == ["new"]
