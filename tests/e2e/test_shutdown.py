"""`tuneserve run` drains on SIGTERM, and the next start continues where it stopped."""

import json
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from benchmarks.application import find_free_port, write_deploy_file
from storage import durable
from system.process_ends import is_running, wait_for_ends
from tests.e2e.conftest import ROOT, START_TIMEOUT_S
from tests.tiny_model import build_tiny_model
from tests.training_process import finish, read_steps, start, wait_for_step, write_inputs
from tests.waiting import PATIENCE, wait_until
from training.__main__ import PAUSED_STATUS
from training.checkpoint.format import list_checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NUM_TOKENS = 800
BESIDE = "beside"
BESIDE_SETTINGS: dict[str, Any] = {
    "num_workers": 1,
    "epochs": 1000,
    "save_every_steps": 1000,
    "evaluate_every_steps": 1000,
}
ROWS = [{"prompt": f"What comes after {n}?", "completion": f"{n + 1}."} for n in range(60)]
SETTINGS = {
    "num_workers": 1,
    "cpus_per_worker": 0.4,
    "epochs": 400,
    "learning_rate": 0.003,
    "micro_batch_tokens": 256,
}


def build_endless_model(directory: Path) -> Path:
    """Build a model with a longer context that never ends its turn."""
    build_tiny_model(directory)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((directory / name).read_text())
        settings["eos_token" if name.startswith("tokenizer") else "eos_token_id"] = None
        if name == "config.json":
            settings["max_position_embeddings"] = 2 * NUM_TOKENS
        if name.startswith("tokenizer"):
            settings["model_max_length"] = 2 * NUM_TOKENS
        (directory / name).write_text(json.dumps(settings))
    return directory


class Supervisor:
    """`tuneserve run` in a folder, and a client of its application."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)
        with (folder / "supervisor.log").open("ab") as output:
            self.process = subprocess.Popen(
                [Path(sys.executable).parent / "tuneserve", "run", "--drain-timeout", "90"],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.family: list[psutil.Process] = []

    def wait_until_up(self) -> None:
        def is_up() -> bool:
            assert self.process.poll() is None, (self.folder / "supervisor.log").read_text()
            try:
                return httpx.get(f"{self.url}/healthz").status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(is_up, START_TIMEOUT_S, "the application answers")
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def find_survivors(self) -> list[psutil.Process]:
        return [process for process in self.family if is_running(process)]

    def stop(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    build_endless_model(tmp_path / "endless")
    return tmp_path


@pytest.fixture
def supervisors() -> Iterator[list[Supervisor]]:
    started: list[Supervisor] = []
    yield started
    for supervisor in started:
        supervisor.stop()


def read_run(folder: Path, job_id: str) -> dict[str, Any]:
    return dict(durable.read_json(folder / "storage" / "runs" / job_id / "run.json"))


def list_steps(folder: Path, job_id: str) -> list[int]:
    lines = durable.read_json_lines(folder / "storage" / "runs" / job_id / "metrics.jsonl")
    return [int(line["step"]) for line in lines]


def read_messages(folder: Path, job_id: str) -> list[str]:
    lines = durable.read_json_lines(folder / "storage" / "runs" / job_id / "events.jsonl")
    return [line["message"] for line in lines]


class Stream(threading.Thread):
    """A streamed chat in a thread; `num_pieces` is the number of pieces received so far."""

    def __init__(self, client: OpenAI) -> None:
        super().__init__()
        self._client = client
        self.num_pieces = 0
        self.finish_reason: str | None = None

    def run(self) -> None:
        chunks = self._client.chat.completions.create(
            model="endless",
            messages=[{"role": "user", "content": "Count."}],
            max_tokens=NUM_TOKENS,
            stream=True,
        )
        for chunk in chunks:
            self.num_pieces += 1
            self.finish_reason = chunk.choices[0].finish_reason or self.finish_reason


@pytest.fixture
def start_training(folder: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start `python -m training` on a separate cluster, with enough steps for the whole test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(start(folder, BESIDE, **BESIDE_SETTINGS))


def test_sigterm_drains_and_next_start_resumes_runs(
    folder: Path,
    supervisors: list[Supervisor],
    start_training: Callable[[], "subprocess.Popen[bytes]"],
) -> None:
    """A training command starts after the application, and the application restarts after it.

    Their Ray clusters must not affect each other in either order.
    """
    port = find_free_port()
    models = {name: str(folder / name) for name in ("tiny", "endless")}
    engine = {"num_cache_blocks": 128}
    write_deploy_file(
        ROOT / "deploy.yaml", folder, port, base_models=models, engine=engine, max_concurrent_runs=2
    )
    first = Supervisor(folder, port)
    supervisors.append(first)
    first.wait_until_up()
    training = start_training()
    wait_for_step(folder, BESIDE, 1, training)
    rows = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
    file = first.client.files.create(file=("rows.jsonl", rows), purpose="fine-tune")

    def create() -> str:
        created = first.client.fine_tuning.jobs.create(
            model="tiny", training_file=file.id, extra_body={"training": SETTINGS}
        )
        return created.id

    paused_by_user, running = create(), create()
    first.client.fine_tuning.jobs.pause(paused_by_user)
    wait_until(lambda: len(list_steps(folder, running)) > 3, 240, "the run trains")
    wait_until(
        lambda: read_run(folder, paused_by_user)["status"] == "paused", 120, "the run is paused"
    )
    stream = Stream(first.client)
    stream.start()
    with socket.create_connection(("127.0.0.1", port), 10) as endless, suppress(OSError):
        endless.sendall(b"GET / HTTP/1.1\r\nx-long: " + bytes(1_000_000).replace(b"\0", b"a"))
        assert endless.recv(12) in (b"HTTP/1.1 431", b""), "headers are limited"
    wait_until(lambda: stream.num_pieces > 3, 60, "the stream has begun")
    first.family = psutil.Process(first.process.pid).children(recursive=True)

    first.process.send_signal(signal.SIGTERM)

    def refuses() -> bool:
        refused = httpx.get(f"{first.url}/v1/models")
        return refused.status_code == 503 and "retry-after" in refused.headers

    wait_until(refuses, 10, "new requests are refused")
    assert stream.finish_reason is None, "the stream is still in progress"
    stream.join(90 * PATIENCE)
    assert stream.finish_reason == "length"
    assert first.process.wait(120 * PATIENCE) == 0, (folder / "supervisor.log").read_text()
    assert not wait_for_ends(first.family, 10)
    record = read_run(folder, running)
    steps = list_steps(folder, running)
    assert (record["status"], record["pause_reason"]) == ("paused", "shutdown")
    assert read_run(folder, paused_by_user)["pause_reason"] == "user"
    checkpoints = folder / "storage" / "runs" / running / "ray/checkpoints"
    assert list_checkpoints(checkpoints)[0].step == steps[-1]

    for path in ((folder / "storage"), *(folder / "storage").rglob("*"), folder / "deploy.log"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path

    wait_for_step(folder, BESIDE, len(read_steps(folder, BESIDE)) + 1, training)
    second = Supervisor(folder, port)
    supervisors.append(second)
    second.wait_until_up()
    wait_until(lambda: len(list_steps(folder, running)) > len(steps) + 3, 240, "the run resumes")
    assert f"Resuming after step {steps[-1]} of" in " ".join(read_messages(folder, running))
    after = list_steps(folder, running)
    assert after == list(range(1, len(after) + 1))
    assert not any(text.startswith("Interrupted") for text in read_messages(folder, running))
    assert read_run(folder, paused_by_user)["status"] == "paused"

    wait_for_step(folder, BESIDE, len(read_steps(folder, BESIDE)) + 1, training)
    training.send_signal(signal.SIGTERM)
    assert finish(training) == PAUSED_STATUS

    second.family = psutil.Process(second.process.pid).children(recursive=True)
    second.process.kill()
    wait_until(
        lambda: not second.find_survivors(),
        100,
        "all processes end after the supervisor was killed",
    )
