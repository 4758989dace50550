import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from serving.engine.core import EngineCore, read_model
from serving.engine.engine import Engine
from serving.generator import GeneratorReplica, GeneratorSettings
from serving.loading.loading import load_tokenizer
from serving.settings import EngineSettings
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout, open_storage
from tests.tiny_model import build_tiny_model

DEADLINE_S = 20.0

Load = Callable[..., Engine]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("other") / "model", seed=1)


@pytest.fixture
def layout(tmp_path: Path) -> StorageLayout:
    return open_storage(tmp_path / "storage")


@pytest.fixture
def store(layout: StorageLayout) -> ModelStore:
    return ModelStore(layout)


@pytest.fixture
def load_engine(tiny_model: Path) -> Iterator[Load]:
    """A function that starts engines whose cores are in this process."""
    engines = []

    def load(path: Path = tiny_model, **settings: float) -> Engine:
        checked = EngineSettings.model_validate(settings)
        start_core = partial(EngineCore, read_model(path, checked), checked)
        engines.append(Engine(load_tokenizer(path), checked, start_core))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@asynccontextmanager
async def run_replica(layout: StorageLayout, **settings: object) -> AsyncIterator[GeneratorReplica]:
    replica = GeneratorReplica(
        GeneratorSettings.model_validate(
            {"storage": str(layout.root), "alias_poll_s": 0.02, **settings}
        )
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            await replica.check_health()
        yield replica
    finally:
        replica.close()


async def wait_until(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while True:
        found = condition()
        if not isinstance(found, bool):
            found = await found
        if found:
            return
        assert time.monotonic() < give_up, "the condition did not come true in time"
        await asyncio.sleep(0.01)
