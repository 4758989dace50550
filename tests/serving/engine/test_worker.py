"""Engines whose cores are in separate processes, as in the product."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from serving.engine.engine import Engine
from serving.engine.messages import Generation, ReportHandler
from serving.engine.remote import RemoteCore, fork_server
from serving.engine.sampling import Sampling
from serving.errors import DeadlineExceededError, EngineDeadError, EngineLostError
from serving.loading.loading import load_tokenizer
from serving.settings import EngineSettings
from serving.wire import Piece
from tests.process_tree import find_fork_servers
from tests.serving.conftest import (
    DEADLINE_S,
    Load,
    find_engine_processes,
    wait_until,
)

SETTINGS = EngineSettings()
LONG = Sampling(max_new_tokens=100)


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = Engine.start(tiny_model, SETTINGS)
    yield engine
    engine.close()


def start_with_core(path: Path, settings: EngineSettings = SETTINGS) -> tuple[Engine, RemoteCore]:
    """Start an engine, and return its core too."""
    cores: list[RemoteCore] = []

    def start_core(handle_report: ReportHandler) -> RemoteCore:
        cores.append(RemoteCore(path, settings, handle_report))
        return cores[0]

    return Engine(load_tokenizer(path), settings, start_core), cores[0]


def find_fork_server() -> psutil.Process:
    (process,) = find_fork_servers("serving.engine.worker")
    return process


async def collect(engine: Engine, ids: Sequence[int], sampling: Sampling) -> list[Piece]:
    return [piece async for piece in engine.generate(ids, sampling)]


def test_remote_core_answers_like_local_core(engine: Engine, load_engine: Load) -> None:
    own = load_engine()
    prompts = [engine.prompts.encode_text(f"fox {number}") for number in range(6)]
    samplings = [Sampling(20), Sampling(20, temperature=1.5, seed=7, num_top_logprobs=2)]

    async def answer(one: Engine) -> list[str]:
        asked = [collect(one, ids, sampling) for ids in prompts for sampling in samplings]
        answers = await asyncio.gather(*asked)
        scored = await asyncio.gather(*(one.score(ids, 2) for ids in prompts))
        return [repr("".join(piece.text for piece in pieces)) for pieces in answers] + [
            repr([(item.token, item.top and item.top[0][0]) for item in text]) for text in scored
        ]

    assert asyncio.run(answer(engine)) == asyncio.run(answer(own))
    assert engine.fill_sampling() == own.fill_sampling()
    assert engine.context_length == own.context_length


@pytest.mark.anyio
async def test_closed_stream_frees_its_slot(tiny_model: Path) -> None:
    engine = Engine.start(tiny_model, EngineSettings(max_running_requests=1, max_queued_requests=0))
    for _ in range(5):
        async with aclosing(engine.generate([5], LONG)) as pieces:
            await anext(pieces)
            assert engine.find_load().num_running == 1
        assert engine.find_load().num_running == 0
    async with asyncio.timeout(DEADLINE_S):
        assert (await collect(engine, [5], Sampling(3)))[-1].num_completion_tokens == 3
    engine.close()


@pytest.mark.anyio
async def test_killed_process_fails_its_requests(engine: Engine) -> None:
    (process,) = find_engine_processes()
    async with aclosing(engine.generate([5], LONG)) as pieces:
        await anext(pieces)
        scoring = asyncio.create_task(engine.score([5] * 100, 0))
        process.kill()
        with pytest.raises(EngineDeadError, match="^the model's engine failed while it answered$"):
            async for _ in pieces:
                pass
        with pytest.raises(EngineDeadError):
            await scoring
    assert not engine.is_healthy()
    assert engine.num_active == 0
    for ask in (collect(engine, [5], LONG), engine.score([5], 0)):
        with pytest.raises(EngineDeadError, match="^the model's engine has stopped$"):
            await ask
    engine.close()
    engine.close()


@pytest.mark.anyio
async def test_failed_request_does_not_affect_other_requests(tiny_model: Path) -> None:
    engine, core = start_with_core(tiny_model)
    wrong: Any = None
    async with aclosing(engine.generate([5], LONG)) as pieces:
        await anext(pieces)
        with engine.requests.register(DEADLINE_S, core.cancel) as request:
            core.generate(Generation(request.id, wrong, 3, Sampling(), False, ()))
            (progress,) = await request.receive()
        assert progress is not None
        assert "not iterable" in (progress.error or "")
        assert [piece async for piece in pieces][-1].num_completion_tokens == 100
    assert engine.is_healthy()
    engine.close()


def test_process_killed_during_loading_is_reported(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fork_server.fork

    def kill_process(connection: int) -> int:
        process = real(connection)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        return process

    monkeypatch.setattr(fork_server, "fork", kill_process)
    with pytest.raises(
        EngineLostError, match="^the process that was to load model 'model' has ended$"
    ):
        Engine.start(tiny_model, SETTINGS)


def test_suspended_process_does_not_block_callers(tiny_model: Path) -> None:
    """More data is sent to the process than the connection's buffers hold."""
    engine, core = start_with_core(tiny_model, EngineSettings(num_cache_blocks=256))
    prompt = [5] * (engine.context_length - 10)

    async def ask() -> None:
        with pytest.raises(DeadlineExceededError):
            async for _ in engine.generate(prompt, Sampling(5), timeout_s=0.3):
                pass

    async def scenario() -> None:
        began = time.monotonic()
        await asyncio.gather(*(ask() for _ in range(8)))
        assert time.monotonic() - began < 2
        assert engine.num_active == 0

    (process,) = find_engine_processes()
    process.suspend()
    for _ in range(400):  # the 8 prompts alone may fit in the buffers
        core.cancel("x" * 4096)
    asyncio.run(scenario())
    process.resume()
    assert asyncio.run(collect(engine, [5], Sampling(3)))[-1].num_completion_tokens == 3
    engine.close()


@pytest.mark.anyio
async def test_commands_to_dying_process_fail(tiny_model: Path) -> None:
    engine = Engine.start(tiny_model, SETTINGS)
    (process,) = find_engine_processes()
    process.kill()
    for _ in range(1000):
        with pytest.raises(EngineDeadError):
            await collect(engine, [5] * 100, Sampling(1000))
    engine.close()


def test_scoring_error_is_reported(
    tiny_model: Path, load_engine: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TypeError("unexpected keyword argument 'use_cache'")

    monkeypatch.setattr("serving.engine.core.score_tokens", refuse)
    engine = load_engine()
    with pytest.raises(
        EngineDeadError,
        match="^the model's engine failed while it scored a text: unexpected keyword argument ",
    ):
        asyncio.run(engine.score([5] * 10, 0))


def test_process_ends_with_many_open_files(tiny_model: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        engine = Engine.start(tiny_model, SETTINGS)
        assert len(find_engine_processes()) == 1
        engine.close()
        assert find_engine_processes() == []
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_dead_fork_server_is_replaced(tiny_model: Path) -> None:
    fork_server.start()
    first = find_fork_server()
    first.kill()
    first.wait()
    engine = Engine.start(tiny_model, SETTINGS)
    assert find_fork_server() != first
    assert asyncio.run(collect(engine, [5], Sampling(2)))[-1].num_completion_tokens == 2
    engine.close()
    assert find_engine_processes() == []


def test_fork_server_has_single_thread(engine: Engine) -> None:
    """A lock that another thread holds during the fork would stay locked in the new process."""
    assert find_fork_server().num_threads() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a thread's on Linux only")
def test_generating_thread_has_higher_priority_than_loading_thread(engine: Engine) -> None:
    (process,) = find_engine_processes()
    before = {thread.id: thread.user_time for thread in process.threads()}
    asyncio.run(collect(engine, [5], LONG))
    busiest = max(process.threads(), key=lambda one: one.user_time - before.get(one.id, 0.0))
    assert os.getpriority(os.PRIO_PROCESS, busiest.id) == os.getpriority(os.PRIO_PROCESS, 0)


def test_all_processes_end_with_killed_owner(tiny_model: Path) -> None:
    program = (
        "import time; from pathlib import Path; from serving.engine.engine import Engine;"
        "from serving.settings import EngineSettings;"
        f"engine = Engine.start(Path({str(tiny_model)!r}), EngineSettings());"
        "print('up', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    started = psutil.Process(owner.pid).children(recursive=True)
    assert len(started) == 4, "expected two fork servers and one child process of each"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    asyncio.run(wait_until(lambda: not any(process.is_running() for process in started)))
