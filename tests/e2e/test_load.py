"""Two generator replicas under more load than they admit, and when one of them is killed."""

import asyncio
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import psutil
import pytest

from benchmarks.application import find_free_port, write_deploy_file
from tests.e2e.conftest import ROOT, Application, start_application
from tests.process_tree import find_descendants
from tests.waiting import wait_for, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

MODEL = "tuneserve-demo"
RUNNING, QUEUED = 4, 4
CAPACITY = 2 * (RUNNING + QUEUED)
OVERLOAD_S = 60.0
NUM_BEFORE_KILL, KILL_LOAD_S = 10, 20.0
REPLICA = "ray::ServeReplica:tuneserve:Generator"


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    folder = tmp_path_factory.mktemp("replicated")
    port = find_free_port()
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        folder,
        port,
        replicas={"min": 2, "max": 2},
        engine={"max_running_requests": RUNNING, "max_queued_requests": QUEUED},
    )
    running = start_application(deploy, folder, port)
    yield running
    running.stop()


@dataclass
class Responses:
    """The number of responses by status, and unexpected responses."""

    statuses: Counter[int] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)


async def send_chat(session: aiohttp.ClientSession, num_tokens: int) -> tuple[int, str]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": num_tokens,
        "temperature": 0,
    }
    async with session.post("/v1/chat/completions", json=body) as response:
        if response.status == 429:
            assert int(response.headers["retry-after"]) >= 1
        return response.status, await response.text()


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(120)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        yield session


async def repeat_chats(
    session: aiohttp.ClientSession, responses: Responses, until: float, num_tokens: int
) -> None:
    while time.monotonic() < until:
        status, text = await send_chat(session, num_tokens)
        responses.statuses[status] += 1
        if status not in (200, 429):
            responses.unexpected.append(f"{status}: {text[:300]}")
        if status == 429:
            await asyncio.sleep(0.5)


async def find_latency_s(session: aiohttp.ClientSession) -> float:
    """Return the median latency in seconds of sequential requests."""
    times = []
    for _ in range(15):
        started = time.monotonic()
        assert (await send_chat(session, 16))[0] == 200
        times.append(time.monotonic() - started)
    return statistics.median(times)


def find_replicas(application: Application) -> dict[int, psutil.Process]:
    root = psutil.Process(application.process.pid)
    return {process.pid: process for process in find_descendants(REPLICA, root)}


def find_memory_bytes(application: Application) -> int:
    """Return the unique memory (USS) of all processes of the application, in bytes."""
    root = psutil.Process(application.process.pid)
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return total


def test_overload_is_rejected_with_429_and_leaks_no_memory(
    replicated: Application,
) -> None:
    async def scenario() -> tuple[Responses, list[int], float, float]:
        responses, memory = Responses(), []
        async with connect(replicated.url) as session:
            before_s = await find_latency_s(session)
            until = time.monotonic() + OVERLOAD_S
            clients = [
                asyncio.create_task(repeat_chats(session, responses, until, 32))
                for _ in range(10 * CAPACITY)
            ]
            while time.monotonic() < until:
                await asyncio.sleep(5)
                memory.append(await asyncio.to_thread(find_memory_bytes, replicated))
            await asyncio.gather(*clients)
            return responses, memory, before_s, await find_latency_s(session)

    responses, memory, before_s, after_s = asyncio.run(scenario())
    print(f"{dict(responses.statuses)}, memory {[round(one / 1e6) for one in memory]} MB")
    print(f"an answer took {before_s * 1000:.0f} ms before, {after_s * 1000:.0f} ms after")
    assert not responses.unexpected
    assert responses.statuses[200] > 100
    assert responses.statuses[429] > 100
    half = len(memory) // 2
    assert statistics.mean(memory[half:]) < statistics.mean(memory[1:half]) * 1.05
    assert after_s < 2 * before_s


def test_killed_replica_is_replaced_without_failed_requests(
    replicated: Application,
) -> None:
    replicas = find_replicas(replicated)
    assert len(replicas) == 2
    victim = min(replicas)

    async def scenario() -> Responses:
        responses = Responses()
        async with connect(replicated.url) as session:
            until = time.monotonic() + KILL_LOAD_S
            clients = [
                asyncio.create_task(repeat_chats(session, responses, until, 16))
                for _ in range(RUNNING)
            ]
            await wait_for(
                lambda: responses.statuses[200] >= NUM_BEFORE_KILL,
                KILL_LOAD_S,
                "the load is answered",
            )
            os.kill(victim, signal.SIGKILL)
            await asyncio.gather(*clients)
        return responses

    responses = asyncio.run(scenario())
    print(f"{dict(responses.statuses)}, {responses.unexpected}")
    assert responses.statuses.keys() == {200}, (
        "requests on the killed replica are retried on the other one"
    )
    assert responses.statuses[200] > 20

    def is_replaced() -> bool:
        now = find_replicas(replicated)
        return len(now) == 2 and victim not in now

    wait_until(is_replaced, 120, "the killed replica is replaced")
    models = replicated.client.models.list()
    assert MODEL in {model.id for model in models}
