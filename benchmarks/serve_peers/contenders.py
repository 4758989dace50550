"""The servers and the engine that `benchmarks.serve` measures, each started alone."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from apps.cli import stop_server
from benchmarks.application import find_free_port, write_deploy_file
from benchmarks.serve_peers.load import Ask, Connect
from benchmarks.workbench import ROOT, describe_end

MODEL_NAME = "measured"
PAGE_SIZE, NUM_PAGES, BATCH_TOKENS, RUNNING = 32, 640, 512, 64
_START_TIMEOUT_S = 240.0
_REQUEST_TIMEOUT_S = 600.0


class Contender(Protocol):
    """Something that answers."""

    can_stream: bool
    is_batching: bool

    def run(self) -> Any:
        """Start it; a context that gives the way to ask it, and stops it."""


def make_contenders(
    model: Path, folder: Path, threads: int, output_tokens: int
) -> dict[str, Contender]:
    """Make all contenders; nothing is started yet."""
    python = Path(sys.executable).parent
    environment = {"OMP_NUM_THREADS": str(threads)}
    port = find_free_port()
    body: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": output_tokens, "temperature": 0}
    engine_settings = {
        "num_threads": threads,
        "page_size": PAGE_SIZE,
        "num_cache_blocks": NUM_PAGES,
        "max_batch_tokens": BATCH_TOKENS,
        "max_running_requests": RUNNING,
    }
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        folder,
        port,
        base_models={MODEL_NAME: str(model)},
        engine=engine_settings,
    )
    ours = Server(
        log=folder / "ours.log",
        command=[python / "tuneserve", "run", deploy],
        environment={},
        ready=f"http://127.0.0.1:{port}/healthz",
        url=f"http://127.0.0.1:{port}/v1/chat/completions",
        body=body,
        streamed_body={"stream_options": {"include_usage": True}},
    )
    transformers = Server(
        log=folder / "transformers.log",
        command=[
            *(python / "transformers", "serve", model, "--continuous-batching"),
            *("--port", str(port), "--device", "cpu", "--cb-block-size", str(PAGE_SIZE)),
            *("--cb-num-blocks", str(NUM_PAGES), "--cb-max-batch-tokens", str(BATCH_TOKENS)),
        ],
        environment=environment,
        ready=f"http://127.0.0.1:{port}/health",
        url=f"http://127.0.0.1:{port}/v1/chat/completions",
        body={**body, "model": str(model)},
    )
    pipeline = Server(
        log=folder / "pipeline.log",
        command=[
            *(python / "serve", "run", "--working-dir", ROOT),
            *("benchmarks.serve_peers.pipeline_app:build_app", f"model={model}"),
            *(f"threads={threads}", f"output_tokens={output_tokens}", f"port={port}"),
        ],
        environment=environment,
        ready=f"http://127.0.0.1:{port}/-/healthz",
        url=f"http://127.0.0.1:{port}/",
        body={},
        can_stream=False,
        is_batching=False,
    )
    engine = BareEngine(model, threads, output_tokens)
    return {"engine": engine, "ours": ours, "transformers": transformers, "pipeline": pipeline}


@dataclass
class Server:
    """A server in a process of its own, asked over HTTP."""

    log: Path
    command: list[Any]
    environment: dict[str, str]
    ready: str
    url: str
    body: dict[str, Any]
    streamed_body: dict[str, Any] = field(default_factory=dict)
    can_stream: bool = True
    is_batching: bool = True

    @contextmanager
    def run(self) -> Iterator[Connect]:
        """Start it, wait until it has answered once, and stop it at the end."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own commands
                [str(part) for part in self.command],
                cwd=self.log.parent,
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait_until_ready(process)
                asyncio.run(self._warm_up())
                yield self._connect
            finally:
                stop_server(process)

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(self.ready, timeout=5):  # noqa: S310 - ours
                    return
            except (urllib.error.URLError, OSError) as exc:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(describe_end(process.returncode or 0, self.log)) from exc
                time.sleep(0.2)

    async def _warm_up(self) -> None:
        async with self._connect() as ask:
            for is_streamed in (False, self.can_stream):
                async for _ in ask("Hello", is_streamed):
                    pass

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Ask]:
        """Open connections that are kept, as OpenAI's client keeps them."""
        timeout = aiohttp.ClientTimeout(_REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield partial(self._ask, session)

    async def _ask(
        self, session: aiohttp.ClientSession, prompt: str, is_streamed: bool
    ) -> AsyncIterator[int]:
        body = {**self.body, "messages": [{"role": "user", "content": prompt}]}
        if is_streamed:
            body |= {"stream": True, **self.streamed_body}
        async with session.post(self.url, json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {await response.text()}")
            if not is_streamed:
                yield (await response.json())["usage"]["completion_tokens"]
                return
            async for line in response.content:
                if b'"content":' in line:
                    yield 0
                if b'"usage":' in line and b'"completion_tokens":' in line:
                    yield json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]


@dataclass
class BareEngine:
    """transformers' continuous batching in this process."""

    model: Path
    threads: int
    output_tokens: int
    can_stream: bool = True
    is_batching: bool = True

    @contextmanager
    def run(self) -> Iterator[Connect]:
        """Load the model and start its thread."""
        import torch
        from transformers import (
            AutoModelForCausalLM,
            AutoTokenizer,
            ContinuousBatchingConfig,
            GenerationConfig,
        )

        torch.set_num_threads(self.threads)
        model: Any = AutoModelForCausalLM.from_pretrained(self.model, dtype="auto").eval()
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, eos_token_id=-1, max_new_tokens=self.output_tokens
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=NUM_PAGES,
                max_batch_tokens=BATCH_TOKENS,
                max_requests_per_batch=RUNNING,
            ),
        )
        manager.warmup()
        manager.start()
        numbers = iter(range(10**9))

        async def ask(prompt: str, is_streamed: bool) -> AsyncIterator[int]:
            messages = [{"role": "user", "content": prompt}]
            ids = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True
            )["input_ids"]
            outputs: asyncio.Queue[Any] = asyncio.Queue()
            name = f"asked-{next(numbers)}"
            manager.register_result_handler(name, outputs.put_nowait)
            manager.add_request(ids, request_id=name, streaming=is_streamed)
            num_seen = 0
            while True:
                output = await outputs.get()
                if output.error is not None:
                    raise RuntimeError(output.error)
                yield len(output.generated_tokens) - num_seen
                num_seen = len(output.generated_tokens)
                if output.is_finished():
                    return

        async def warm_up() -> None:
            async for _ in ask("Hello", False):
                pass

        @asynccontextmanager
        async def connect() -> AsyncIterator[Ask]:
            yield ask

        try:
            asyncio.run(warm_up())
            yield connect
        finally:
            manager.stop(block=True, hard_stop=True)
            manager.destroy()
