"""A server in a separate process, measured over HTTP."""

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
from typing import Any

import aiohttp
import psutil

from apps.server.server_process import stop_server
from benchmarks.application import find_free_port, write_deploy_file
from benchmarks.serve_peers.load import Ask, Load, measure
from benchmarks.serve_peers.processes import awake, paused, wait_until_quiet
from benchmarks.workbench import ROOT, describe_end

_START_TIMEOUT_S = 240.0
_REQUEST_TIMEOUT_S = 600.0
# Longer than `tuneserve run` waits for its child processes, which would otherwise be left running.
_STOP_TIMEOUT_S = 90.0


@dataclass
class Server:
    """The command that starts a server, and the requests that it is sent."""

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
    def run(self) -> Iterator["RunningServer"]:
        """Start the server, warm it up, pause it, and stop it at the end."""
        with self.start() as process:
            running = RunningServer(self, psutil.Process(process.pid))
            asyncio.run(running.warm_up())
            with paused(running.process):
                yield running

    @contextmanager
    def start(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the server, wait until it is ready, and stop it at the end."""
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
                yield process
            finally:
                stop_server(process, _STOP_TIMEOUT_S)

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


def describe_application(folder: Path) -> Server:
    """Describe the application with the embedded default; its storage and log are in `folder`."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    return Server(
        log=folder / "server.log",
        command=[
            Path(sys.executable).parent / "tuneserve",
            "run",
            write_deploy_file(ROOT / "deploy.yaml", folder, port),
        ],
        environment={},
        ready=f"{url}/healthz",
        url=url,
        body={},
    )


@dataclass
class RunningServer:
    """A started server, which is paused between loads."""

    server: Server
    process: psutil.Process

    def measure(self, load: Load) -> dict[str, Any]:
        """Resume the server, warm it up, wait until it is idle, send a load, and pause it again."""
        with awake(self.process):
            asyncio.run(self.warm_up())
            wait_until_quiet(self.process)
            return measure(self._connect, load)

    async def warm_up(self) -> None:
        """Send one request of each kind that the server supports: plain and streamed."""
        async with self._connect() as ask:
            for is_streamed in (False, self.server.can_stream):
                async for _ in ask("Hello", is_streamed):
                    pass

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Ask]:
        """Open a session with persistent connections, like those of OpenAI's client."""
        timeout = aiohttp.ClientTimeout(_REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield partial(self._ask, session)

    async def _ask(
        self, session: aiohttp.ClientSession, prompt: str, is_streamed: bool
    ) -> AsyncIterator[int]:
        body = {**self.server.body, "messages": [{"role": "user", "content": prompt}]}
        if is_streamed:
            body |= {"stream": True, **self.server.streamed_body}
        async with session.post(self.server.url, json=body) as response:
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
