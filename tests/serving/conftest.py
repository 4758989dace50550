import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from serving.engine.core import EngineCore, read_model
from serving.engine.engine import Engine
from serving.generator import GeneratorReplica, GeneratorSettings
from serving.loading.loading import load_tokenizer
from serving.openai.chat import parse_chat_request
from serving.openai.completion import parse_completion_request
from serving.settings import EngineSettings
from serving.store.handover_log import HandoverLog
from serving.store.model_store import ModelStore
from serving.wire import AnswerOrigin, Piece, TextRequest
from storage import durable
from storage.layout import StorageLayout, open_storage
from tests.process_tree import find_forked
from tests.tiny_model import build_tiny_model

DEADLINE_S = 20.0

Load = Callable[..., Engine]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = condition()
        if not isinstance(found, bool):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.01)


def make_request(body: dict[str, Any], request_id: str = "id") -> TextRequest:
    """Return a request for text as the API passes it to a generator that logs texts."""
    content = parse_chat_request(body) if "messages" in body else parse_completion_request(body)
    return TextRequest(request_id, content, str(body))


def make_chat(
    model: str, content: str = "fox", *, request_id: str = "id", **fields: Any
) -> TextRequest:
    """Return a chat request for at most 20 tokens."""
    messages = [{"role": "user", "content": content}]
    body = {"model": model, "messages": messages, "max_tokens": 20, **fields}
    return make_request(body, request_id)


class StreamedChat(NamedTuple):
    """The streamed answer to a chat request."""

    origin: AnswerOrigin
    text: str
    last: Piece


async def stream_chat(replica: GeneratorReplica, model: str, **fields: Any) -> StreamedChat:
    items = [item async for item in replica.stream(make_chat(model, **fields))]
    (_, origin), *others = items
    assert origin is not None
    assert all(other is None for _, other in others)
    pieces = [piece for some, _ in items for piece in some]
    return StreamedChat(origin, "".join(piece.text for piece in pieces), pieces[-1])


async def find_serving_model(replica: GeneratorReplica, name: str) -> str:
    """Return the id of the model that answers to a name."""
    return (await stream_chat(replica, name)).origin.model_id


async def list_ids(replica: GeneratorReplica) -> list[str]:
    """List the ids of the loaded models."""
    return [loaded.model_id for loaded in await replica.loaded_models()]


async def has_alias(replica: GeneratorReplica, model_id: str, alias: str = "latest") -> bool:
    """Return whether a loaded model serves an alias."""
    loaded = await replica.loaded_models()
    return any(one.model_id == model_id and alias in one.aliases for one in loaded)


def list_outcomes(layout: StorageLayout) -> list[str]:
    """List the outcomes of the moves of `latest`."""
    return [event.outcome for event in HandoverLog(layout.store.handovers).read("latest")]


def find_engine_processes() -> list[psutil.Process]:
    """Return the processes of all engines, which are children of the fork server."""
    return find_forked("serving.engine.worker")


def publish_broken(
    store: ModelStore, layout: StorageLayout, source: Path, model_id: str, **config: Any
) -> None:
    """Publish a copy of a model that cannot be loaded."""
    building = Path(shutil.copytree(source, layout.models / ".broken"))
    own = json.loads((building / "config.json").read_text())
    generation = config.pop("generation", None)
    if generation is not None:
        durable.write_json(building / "generation_config.json", generation)
    else:
        config = config or {"model_type": "unheard-of"}
    durable.write_json(building / "config.json", {**own, **config})
    store.publish(building, model_id)
