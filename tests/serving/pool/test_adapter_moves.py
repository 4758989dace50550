"""What is evicted, kept and reserved when aliases move to and from adapters.

The pool and the hand-over are the real ones; engines are stand-ins that take no memory, so that
each moment at which something may go wrong can be chosen.
"""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.alias_handover import AliasWatcher
from serving.engine.sampling import Sampling
from serving.errors import EngineDeadError, EngineLostError, InvalidRequestError, OverloadedError
from serving.pool import model_pool
from serving.pool.model_pool import ModelPool
from serving.settings import EngineSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(eq=False)
class StoredStandIn:
    """A stored model of some bytes; an adapter has a base."""

    id: str
    size_bytes: int
    base: "StoredStandIn | None" = None
    edition: tuple[int, int] = (1, 1)
    served_task: Any = field(default_factory=lambda: SimpleNamespace(answers="text"))

    @property
    def is_adapter(self) -> bool:
        return self.base is not None

    @property
    def path(self) -> str:
        return self.id

    @property
    def lineage(self) -> Any:
        return SimpleNamespace(base_model=self.base.id if self.base else None)

    def lock_shared(self) -> io.BytesIO:
        return io.BytesIO()

    def verify(self) -> None:
        pass

    verify_before_loading = verify

    def exists(self) -> bool:
        return True


class EngineStandIn:
    """An engine that records what is done with it; an adapter's shares the state of its base."""

    steps: list[str]

    def __init__(self, name: str, base: "EngineStandIn | None" = None) -> None:
        self.name, self.root = name, base or self
        self.num_active = 0
        if base is None:
            self.is_alive, self.is_full, self.dies_on_open = True, False, False
            self.may_answer = asyncio.Event()
            self.may_answer.set()

    @classmethod
    def start(cls, path: str, _: EngineSettings) -> "EngineStandIn":
        cls.steps.append(f"start {path}")
        return cls(path)

    async def open_adapter(self, path: str, _: Path) -> "EngineStandIn":
        self.steps.append(f"open {path}")
        if self.dies_on_open:
            self.is_alive = False
            raise EngineDeadError("its process has ended")
        return EngineStandIn(path, self.root)

    async def generate(
        self, _ids: list[int], _: Sampling, *, checks_capacity: bool = True
    ) -> AsyncIterator[int]:
        if self.root.is_full and checks_capacity:
            raise OverloadedError("the queue is full")
        await self.root.may_answer.wait()
        if not self.is_healthy():
            raise EngineDeadError("the model's engine failed while it answered")
        yield 1

    def is_healthy(self) -> bool:
        return self.root.is_alive

    def close(self) -> None:
        self.steps.append(f"close {self.name}")
        if self.root is self:
            self.is_alive = False


def make_pool(max_bytes: int, max_loaded: int) -> Any:
    pool: Any = ModelPool(EngineSettings(), max_loaded, max_bytes, find_base)
    return pool


def find_base(adapter: Any) -> Any:
    return adapter.base


def make_watcher() -> Any:
    """Return a hand-over without its task, which polls the aliases of a store."""
    return AliasWatcher.__new__(AliasWatcher)


class Moves:
    """A pool of `max_bytes`, and an alias that moves in it."""

    def __init__(self, max_bytes: int, max_loaded: int = 3) -> None:
        self.pool = make_pool(max_bytes, max_loaded)
        self.pool._estimates._measure = lambda one, _: one.size_bytes
        self.watcher = make_watcher()
        self.watcher._models = self.pool
        self.watcher._targets, self.watcher._moving_to, self.watcher._desired = {}, {}, {}
        self.watcher._outcomes = SimpleNamespace(record=lambda *_: None)

    async def load(self, model: StoredStandIn) -> Any:
        return (await self.pool.load(model)).engine

    async def move(self, old: StoredStandIn, new: StoredStandIn, alias: str = "latest") -> bool:
        self.watcher._point(alias, old)
        self.watcher._desired[alias] = new.id
        self.watcher._moving_to[alias] = new
        self.watcher._pin_targets()
        try:
            return bool(await self.watcher._move(alias, old, new))
        finally:
            del self.watcher._moving_to[alias]
            self.watcher._pin_targets()

    def list_loaded(self) -> list[str]:
        return [one.stored.id for one in self.pool.list_loaded()]


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with engines, in order."""
    monkeypatch.setattr(EngineStandIn, "steps", [], raising=False)
    monkeypatch.setattr(model_pool, "Engine", EngineStandIn)
    for name in ("fork_server", "render_fork_server"):
        monkeypatch.setattr(model_pool, name, SimpleNamespace(start=lambda: None))
    return EngineStandIn.steps


async def test_base_is_not_restarted_for_an_adapter_that_never_fits(steps: list[str]) -> None:
    moves, base = Moves(100), StoredStandIn("base", 95)
    adapter = StoredStandIn("adapter", 10, base)
    await moves.load(base)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="^model 'adapter' needs .* model 'base', "):
            await moves.move(base, adapter)
    assert steps == ["start base"]


async def test_base_stays_while_another_model_leaves_no_room_for_its_adapter(
    steps: list[str],
) -> None:
    moves, base, other = Moves(100), StoredStandIn("base", 60), StoredStandIn("other", 38)
    adapter = StoredStandIn("adapter", 5, base)
    await moves.load(base)
    async with moves.pool.lease(other, timeout_s=5):
        with pytest.raises(OverloadedError, match="^model 'adapter' is not loaded, "):
            await moves.move(base, adapter)
        assert steps == ["start base", "start other"]
    assert await moves.move(base, adapter)
    assert moves.list_loaded() == ["adapter", "base"]


async def test_base_is_evicted_with_the_adapter_that_is_replaced(steps: list[str]) -> None:
    moves, base, other = Moves(100), StoredStandIn("base", 60), StoredStandIn("other", 60)
    adapter = StoredStandIn("adapter", 5, base)
    await moves.load(adapter)
    assert await moves.move(adapter, other)
    assert moves.list_loaded() == ["other"]
    assert await moves.move(other, adapter)
    assert moves.list_loaded() == ["adapter", "base"]
    second = StoredStandIn("second", 60)
    assert await moves.move(adapter, StoredStandIn("of second", 5, second))
    assert moves.list_loaded() == ["of second", "second"]


async def test_base_that_another_alias_uses_stays(steps: list[str]) -> None:
    moves, base, other = Moves(100), StoredStandIn("base", 60), StoredStandIn("other", 60)
    adapter = StoredStandIn("adapter", 5, base)
    await moves.load(adapter)
    moves.watcher._point("stable", base)
    with pytest.raises(OverloadedError, match="^model 'other' is not loaded, "):
        await moves.move(adapter, other)
    assert moves.list_loaded() == ["adapter", "base"]
    assert steps == ["start base", "open adapter"]


async def test_requests_of_a_full_base_do_not_prevent_the_move_to_its_adapter(
    steps: list[str],
) -> None:
    moves, base = Moves(100), StoredStandIn("base", 60)
    first, second = StoredStandIn("first", 5, base), StoredStandIn("second", 5, base)
    engine = await moves.load(base)
    engine.is_full = True
    assert await moves.move(base, first)
    assert await moves.move(first, second)
    assert steps == ["start base", "open first", "open second"]


async def test_base_is_in_use_until_its_adapter_is_loaded(steps: list[str]) -> None:
    moves, base = Moves(100, max_loaded=1), StoredStandIn("base", 10)
    adapter, other = StoredStandIn("adapter", 5, base), StoredStandIn("other", 10)
    engine = await moves.load(base)
    engine.may_answer.clear()
    moving = asyncio.create_task(moves.move(base, adapter))
    async with asyncio.timeout(5):
        while "open adapter" not in steps:
            await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="^model 'other' is not loaded, "):
        async with moves.pool.lease(other, timeout_s=5):
            pass
    engine.may_answer.set()
    assert await moving
    assert moves.list_loaded() == ["adapter", "base"]


async def test_memory_of_the_base_is_reserved_with_that_of_its_adapter(steps: list[str]) -> None:
    moves, old = Moves(100), StoredStandIn("old", 95)
    base, other = StoredStandIn("base", 90), StoredStandIn("other", 50)
    adapter = StoredStandIn("adapter", 5, base)
    await moves.load(other)
    await moves.load(old)

    async def ask_other() -> None:
        async with asyncio.timeout(5):
            while "old" in moves.list_loaded():
                await asyncio.sleep(0)
        async with moves.pool.lease(other, timeout_s=5):
            pass

    asking = asyncio.create_task(ask_other())
    assert await moves.move(old, adapter)
    assert moves.list_loaded() == ["adapter", "base"]
    with pytest.raises(OverloadedError, match="^model 'other' is not loaded, "):
        await asking


@pytest.mark.parametrize("dies_in", ["opening", "first answer"])
async def test_death_of_the_base_does_not_blame_the_adapter(steps: list[str], dies_in: str) -> None:
    """The hand-over is retried after an `EngineLostError`; after others it is refused."""
    moves, base = Moves(100), StoredStandIn("base", 60)
    adapter = StoredStandIn("adapter", 5, base)
    engine = await moves.load(base)
    engine.dies_on_open = dies_in == "opening"
    engine.may_answer.clear()
    moving = asyncio.create_task(moves.move(base, adapter))
    async with asyncio.timeout(5):
        while "open adapter" not in steps:
            await asyncio.sleep(0)
    engine.is_alive = False
    engine.may_answer.set()
    with pytest.raises(EngineLostError, match="^the engine of its base model"):
        await moving
