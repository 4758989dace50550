"""`python -m training` as a process, and the steps of an uninterrupted run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from storage import durable
from system.process_ends import wait_for_ends
from tests.process_tree import list_forked_workers
from tests.tiny_model import build_tiny_model
from tests.waiting import PATIENCE, wait_until

TIMEOUT_S = 240.0
Steps = list[dict[str, float]]
ROWS = [
    {"prompt": f"What comes after {number}{' please' * (number % 5)}?", "completion": f"{number}."}
    for number in range(90)
]
SPEC: dict[str, Any] = {
    "base_model": "tiny",
    "train_file": "rows.jsonl",
    "epochs": 4,
    "learning_rate": 0.01,
    "micro_batch_tokens": 128,
    "validation_fraction": 0.1,
    "evaluate_every_steps": 7,
    "save_every_steps": 5,
}
EXACT: dict[str, Any] = {
    "precision": "fp32",
    "epochs": 2,
    "shuffle_window": 500,
    "learning_rate": 0.001,
}
"""Settings with which rounding stays small, so that other strategies have the same losses."""


@dataclass(frozen=True)
class TrainedFolder:
    """The folder of an uninterrupted run called "whole", and its steps."""

    path: Path
    steps: Steps


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> TrainedFolder:
    folder = write_inputs(tmp_path_factory.mktemp("trained"))
    with start(folder, "whole") as process:
        assert finish(process) == 0
    return TrainedFolder(folder, read_steps(folder, "whole"))


@pytest.fixture
def whole(trained_folder: TrainedFolder) -> Steps:
    """The steps of an uninterrupted run."""
    return trained_folder.steps


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """The steps of an uninterrupted run with the settings `EXACT` and ZeRO-3."""
    folder = write_inputs(tmp_path_factory.mktemp("exact"))
    with start(folder, "exact", **EXACT) as process:
        assert finish(process) == 0
    return read_steps(folder, "exact")


def write_inputs(folder: Path) -> Path:
    """Write the inputs that `SPEC` names into a folder; returns the folder."""
    build_tiny_model(folder / "tiny")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return folder


@contextmanager
def start(
    folder: Path, output: str, *, arguments: Sequence[str] = (), **changes: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `python -m training`; on exit, kill it and its descendants if it still runs.

    If the body of the `with` statement fails, the end of the command's log is printed.
    """
    spec = folder / f"{output}.json"
    spec.write_text(json.dumps({**SPEC, **changes}))
    command = [sys.executable, "-m", "training", spec.name, "--output", output, "--cache", "cache"]
    with (folder / f"{output}.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *arguments], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    family = psutil.Process(process.pid)
    children: list[psutil.Process] = []
    try:
        yield process
    except BaseException:
        print((folder / f"{output}.log").read_text(errors="replace")[-8000:])
        raise
    finally:
        if process.poll() is None:
            children = [*family.children(recursive=True), *list_forked_workers()]
            process.kill()
            process.wait()
        end(children)


def run_spec(folder: Path, spec: Mapping[str, Any], **environment: str) -> None:
    """Run `python -m training` with a spec in a folder, to the end; the output is `run` there."""
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "training", "spec.json", "--output", "run", "--cache", "cache"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def end(processes: list[psutil.Process]) -> None:
    """Kill orphaned processes and wait until they have ended."""
    for process in processes:
        if process.is_running():
            process.kill()
    assert not wait_for_ends(processes, 30)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a command and then what it has started, and wait until all have ended."""
    children = [*psutil.Process(process.pid).children(recursive=True), *list_forked_workers()]
    process.kill()
    process.wait()
    end(children)


def finish(process: "subprocess.Popen[bytes]") -> int:
    return process.wait(timeout=TIMEOUT_S * PATIENCE)


def read_steps(folder: Path, output: str) -> Steps:
    """Return the metrics of every step, without its durations."""
    keys = ("step", "epoch", "loss", "learning_rate", "grad_norm", "tokens", "eval_loss")
    lines = durable.read_json_lines(folder / output / "metrics.jsonl")
    return [{key: line[key] for key in keys if key in line} for line in lines]


def wait_for_step(folder: Path, output: str, step: int, process: "subprocess.Popen[bytes]") -> None:
    def has_reached_step() -> bool:
        assert process.poll() is None, (folder / f"{output}.log").read_text()[-4000:]
        steps = read_steps(folder, output)
        return bool(steps) and steps[-1]["step"] >= step

    wait_until(has_reached_step, TIMEOUT_S, f"step {step}")


def read_messages(folder: Path, output: str) -> list[str]:
    events = durable.read_json_lines(folder / output / "events.jsonl")
    return [event["message"] for event in events]
