"""What `benchmarks.serve` measures: each is started once, and paused while another has its turn."""

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks.application import find_free_port, write_deploy_file
from benchmarks.serve_peers import engine_process
from benchmarks.serve_peers.load import Load
from benchmarks.serve_peers.processes import pause, resume
from benchmarks.serve_peers.server import Server
from benchmarks.workbench import ROOT

MODEL_NAME = "measured"


class Running(Protocol):
    """Something that answers."""

    def measure(self, load: Load) -> dict[str, Any]:
        """Wake it, send it a load, and pause it again."""


class Contender(Protocol):
    """Something that can be started."""

    can_stream: bool
    is_batching: bool

    def run(self) -> AbstractContextManager[Running]:
        """Start it, warm it and pause it; stop it at the end."""


def make_contenders(
    model: Path, folder: Path, threads: int, output_tokens: int
) -> dict[str, Contender]:
    """Make all contenders; nothing is started yet."""
    python = Path(sys.executable).parent
    environment = {"OMP_NUM_THREADS": str(threads)}
    settings = engine_process.Settings(model, threads, output_tokens)
    port, other_port = find_free_port(), find_free_port()
    body: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": output_tokens, "temperature": 0}
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        folder,
        port,
        base_models={MODEL_NAME: str(model)},
        engine={
            "num_threads": threads,
            "page_size": settings.page_size,
            "num_cache_blocks": settings.num_pages,
            "max_batch_tokens": settings.batch_tokens,
            "max_running_requests": settings.running,
        },
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
            *("--port", other_port, "--device", "cpu", "--cb-block-size", settings.page_size),
            *("--cb-num-blocks", settings.num_pages),
            *("--cb-max-batch-tokens", settings.batch_tokens),
        ],
        environment=environment,
        ready=f"http://127.0.0.1:{other_port}/health",
        url=f"http://127.0.0.1:{other_port}/v1/chat/completions",
        body={**body, "model": str(model)},
    )
    pipeline = Server(
        log=folder / "pipeline.log",
        command=[
            *(python / "serve", "run", "--working-dir", ROOT),
            *("benchmarks.serve_peers.pipeline_app:build_app", f"model={model}"),
            *(f"threads={threads}", f"output_tokens={output_tokens}", f"port={other_port}"),
        ],
        environment=environment,
        ready=f"http://127.0.0.1:{other_port}/-/healthz",
        url=f"http://127.0.0.1:{other_port}/",
        body={},
        can_stream=False,
        is_batching=False,
    )
    return {
        "engine": BareEngine(settings),
        "ours": ours,
        "transformers": transformers,
        "pipeline": pipeline,
    }


@dataclass
class BareEngine:
    """transformers' continuous batching, without a server, in a process of its own."""

    settings: engine_process.Settings
    can_stream: bool = True
    is_batching: bool = True

    @contextmanager
    def run(self) -> Iterator["RunningEngine"]:
        """Start the process, and wait until the engine has answered once."""
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=engine_process.main, args=(theirs, self.settings))
        process.start()
        theirs.close()
        running = RunningEngine(psutil.Process(process.pid), ours)
        try:
            ours.recv()  # it is warm
            pause(running.process)
            yield running
        finally:
            resume(running.process)
            ours.close()
            process.join()


@dataclass
class RunningEngine:
    """The process and the way to it."""

    process: psutil.Process
    connection: Any  # multiprocessing.connection.Connection[Load, dict[str, Any]]

    def measure(self, load: Load) -> dict[str, Any]:
        """Wake it, send it a load, and pause it again."""
        resume(self.process)
        self.connection.send(load)
        figures: dict[str, Any] = self.connection.recv()
        pause(self.process)
        return figures
