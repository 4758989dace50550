"""The contenders of `benchmarks.serve`: each is started once, and paused while others run."""

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
from benchmarks.serve_peers.processes import awake, paused
from benchmarks.serve_peers.server import Server
from benchmarks.workbench import ROOT

MODEL_NAME = "measured"
BIN = Path(sys.executable).parent


class Running(Protocol):
    """A contender that has been started."""

    def measure(self, load: Load) -> dict[str, Any]:
        """Resume the contender, send it a load, and pause it again; returns the figures."""


class Contender(Protocol):
    """A system to measure."""

    can_stream: bool
    is_batching: bool

    def run(self) -> AbstractContextManager[Running]:
        """Start the contender, warm it up and pause it; stop it at the end."""


def make_contenders(
    model: Path, folder: Path, threads: int, output_tokens: int
) -> dict[str, Contender]:
    """Make all contenders without starting them."""
    settings = engine_process.Settings(model, threads, output_tokens)
    return {
        "engine": BareEngine(settings),
        "ours": _describe_ours(settings, folder),
        "transformers": _describe_transformers(settings, folder),
        "pipeline": _describe_pipeline(settings, folder),
    }


def _describe_ours(settings: engine_process.Settings, folder: Path) -> Server:
    port = find_free_port()
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        folder,
        port,
        base_models={MODEL_NAME: str(settings.model)},
        engine={
            "num_threads": settings.threads,
            "page_size": settings.page_size,
            "num_cache_blocks": settings.num_pages,
            "max_batch_tokens": settings.batch_tokens,
            "max_running_requests": settings.running,
        },
    )
    return Server(
        log=folder / "ours.log",
        command=[BIN / "tuneserve", "run", deploy],
        environment={},
        ready=f"http://127.0.0.1:{port}/healthz",
        url=f"http://127.0.0.1:{port}/v1/chat/completions",
        body=_build_body(MODEL_NAME, settings),
        streamed_body={"stream_options": {"include_usage": True}},
    )


def _describe_transformers(settings: engine_process.Settings, folder: Path) -> Server:
    port = find_free_port()
    return Server(
        log=folder / "transformers.log",
        command=[
            *(BIN / "transformers", "serve", settings.model, "--continuous-batching"),
            *("--port", port, "--device", "cpu", "--cb-block-size", settings.page_size),
            *("--cb-num-blocks", settings.num_pages),
            *("--cb-max-batch-tokens", settings.batch_tokens),
        ],
        environment={"OMP_NUM_THREADS": str(settings.threads)},
        ready=f"http://127.0.0.1:{port}/health",
        url=f"http://127.0.0.1:{port}/v1/chat/completions",
        body=_build_body(str(settings.model), settings),
    )


def _describe_pipeline(settings: engine_process.Settings, folder: Path) -> Server:
    port = find_free_port()
    return Server(
        log=folder / "pipeline.log",
        command=[
            *(BIN / "serve", "run", "--working-dir", ROOT),
            *("benchmarks.serve_peers.pipeline_app:build_app", f"model={settings.model}"),
            *(f"threads={settings.threads}", f"output_tokens={settings.output_tokens}"),
            f"port={port}",
        ],
        environment={"OMP_NUM_THREADS": str(settings.threads)},
        ready=f"http://127.0.0.1:{port}/-/healthz",
        url=f"http://127.0.0.1:{port}/",
        body={},
        can_stream=False,
        is_batching=False,
    )


def _build_body(model: str, settings: engine_process.Settings) -> dict[str, Any]:
    return {"model": model, "max_tokens": settings.output_tokens, "temperature": 0}


@dataclass
class BareEngine:
    """transformers' continuous batching without a server, in a separate process."""

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
            ours.recv()  # sent after the warm-up
            with paused(running.process):
                yield running
        finally:
            ours.close()
            process.join()


@dataclass
class RunningEngine:
    """The process of the bare engine and the connection to it."""

    process: psutil.Process
    connection: Any  # multiprocessing.connection.Connection[Load, dict[str, Any]]

    def measure(self, load: Load) -> dict[str, Any]:
        """Resume the process, send it a load, and pause it again; returns the figures."""
        with awake(self.process):
            self.connection.send(load)
            figures: dict[str, Any] = self.connection.recv()
            return figures
