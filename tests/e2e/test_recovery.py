"""Runs that are killed, paused and extended on a real Ray cluster go on as if nothing had been."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from storage import durable
from tests.e2e.conftest import ROOT, wait_until
from tests.tiny_model import build_tiny_model

pytestmark = pytest.mark.e2e

TIMEOUT_S = 240.0
ROWS = [
    {"prompt": f"What comes after {number}{' please' * (number % 5)}?", "completion": f"{number}."}
    for number in range(90)
]
SPEC = {
    "base_model": "tiny",
    "train_file": "rows.jsonl",
    "epochs": 4,
    "learning_rate": 0.01,
    "micro_batch_tokens": 128,
    "validation_fraction": 0.1,
    "evaluate_every_steps": 7,
    "save_every_steps": 5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recovery")
    build_tiny_model(folder / "tiny")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[dict[str, float]]:
    """The steps of a run that nobody interrupted."""
    with start(folder, "whole") as process:
        assert finish(process) == 0
    return read_steps(folder, "whole")


@contextmanager
def start(folder: Path, output: str, **changes: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `python -m training`; what it leaves behind is killed at the end."""
    spec = folder / f"{output}.json"
    spec.write_text(json.dumps({**SPEC, **changes}))
    command = [sys.executable, "-m", "training", spec.name, "--output", output, "--cache", "cache"]
    with (folder / f"{output}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    family = psutil.Process(process.pid)
    children: list[psutil.Process] = []
    try:
        yield process
    finally:
        if process.poll() is None:
            children = family.children(recursive=True)
            process.kill()
            process.wait()
        end(children)


def end(processes: list[psutil.Process]) -> None:
    """Kill processes whose parent is gone, and wait for their end."""
    for process in processes:
        if process.is_running():
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


def finish(process: "subprocess.Popen[bytes]") -> int:
    return process.wait(timeout=TIMEOUT_S)


def read_steps(folder: Path, output: str) -> list[dict[str, float]]:
    """What a step computed, without how long it took."""
    keys = ("step", "epoch", "loss", "learning_rate", "grad_norm", "tokens", "eval_loss")
    lines = durable.read_json_lines(folder / output / "metrics.jsonl")
    return [{key: line[key] for key in keys if key in line} for line in lines]


def wait_for_step(folder: Path, output: str, step: int, process: "subprocess.Popen[bytes]") -> None:
    def has_come() -> bool:
        assert process.poll() is None, (folder / f"{output}.log").read_text()[-4000:]
        steps = read_steps(folder, output)
        return bool(steps) and steps[-1]["step"] >= step

    wait_until(has_come, TIMEOUT_S, f"step {step}")


def read_messages(folder: Path, output: str) -> list[str]:
    events = durable.read_json_lines(folder / output / "events.jsonl")
    return [event["message"] for event in events]


def test_a_killed_worker_is_replaced(folder: Path, whole: list[dict[str, float]]) -> None:
    with start(folder, "worker") as process:
        wait_for_step(folder, "worker", 12, process)
        workers = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "RayTrainWorker" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2
        workers[1].kill()
        assert finish(process) == 0
    assert read_steps(folder, "worker") == whole
    messages = read_messages(folder, "worker")
    assert any("was lost" in message for message in messages)
    assert any(message.startswith("Going on after step") for message in messages)


def test_a_killed_job_goes_on_when_it_is_started_again(
    folder: Path, whole: list[dict[str, float]]
) -> None:
    with start(folder, "job") as process:
        wait_for_step(folder, "job", 13, process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        end(children)
    assert len(read_steps(folder, "job")) < len(whole)
    with start(folder, "job") as process:
        assert finish(process) == 0
    assert read_steps(folder, "job") == whole
    assert any(
        message.startswith("Going on after step") for message in read_messages(folder, "job")
    )


def test_a_paused_run_goes_on_with_other_numbers_of_workers(
    folder: Path, whole: list[dict[str, float]]
) -> None:
    """Two workers, then one, then two again; each goes on from what the one before has saved."""
    num_steps = 0
    for num_workers in (2, 1):
        with start(folder, "resized", num_workers=num_workers) as process:
            wait_for_step(folder, "resized", num_steps + 8, process)
            process.send_signal(signal.SIGINT)
            assert finish(process) == 75
        assert durable.read_json(folder / "resized" / "run.json")["status"] == "paused"
        num_steps = len(read_steps(folder, "resized"))
    with start(folder, "resized", num_workers=2) as process:
        assert finish(process) == 0
    messages = read_messages(folder, "resized")
    sizes = [message for message in messages if "up on cpu" in message]
    assert [int(message.split()[0]) for message in sizes] == [2, 1, 2]
    resumed = [message for message in messages if message.startswith("Going on after step")]
    first, second = (int(message.split()[4]) for message in resumed)
    assert 8 <= first < first + 8 <= second == num_steps < len(whole)
    expected = [step["loss"] for step in whole]
    assert [step["loss"] for step in read_steps(folder, "resized")] == pytest.approx(
        expected, rel=1e-2
    )


def test_the_readmes_way_to_a_model_works(folder: Path, whole: list[dict[str, float]]) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (example,) = (block for block in blocks if "training.consolidate" in block)
    example = example.replace("my-run", "whole").replace(".venv/bin/python", sys.executable)
    subprocess.run(["sh", "-ec", example], cwd=folder, check=True, timeout=TIMEOUT_S)
    assert (folder / "another-model" / "model.safetensors").is_file()


def test_a_finished_run_is_extended(folder: Path, whole: list[dict[str, float]]) -> None:
    with start(folder, "whole", epochs=5) as process:
        assert finish(process) == 0
    steps = read_steps(folder, "whole")
    assert steps[: len(whole)] == whole
    assert len(steps) > len(whole)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    lineage = durable.read_json(folder / "whole" / "model" / "lineage.json")
    assert lineage["checkpoint_step"] == len(steps)
    assert [end["epochs"] for end in lineage["extends"]] == [4]
    assert (folder / "whole" / f"model-step-{len(whole)}" / "model.safetensors").is_file()


def test_a_tuned_model_can_be_tuned_further(folder: Path, whole: list[dict[str, float]]) -> None:
    with start(folder, "further", base_model="whole/model", epochs=1) as process:
        assert finish(process) == 0
    lineage = durable.read_json(folder / "further" / "model" / "lineage.json")
    assert lineage["parent"]["run_id"] == "whole"
    assert lineage["parent"]["base_model"] == "tiny"
    first = read_steps(folder, "further")[0]
    assert first["loss"] < whole[0]["loss"] / 2, "it goes on from what was learned"


def test_training_stops_early_and_keeps_the_best(folder: Path) -> None:
    """With labels that say nothing, more steps only fit noise."""
    settings = {
        "keep": "best",
        "early_stopping_patience": 2,
        "evaluate_every_steps": 4,
        "epochs": 40,
        "learning_rate": 0.05,
        "lr_schedule": "constant",
        "keep_checkpoints": 1,
    }
    with start(folder, "early", **settings) as process:
        assert finish(process) == 0
    evaluated = [step for step in read_steps(folder, "early") if "eval_loss" in step]
    best = min(evaluated, key=lambda step: step["eval_loss"])
    assert evaluated.index(best) == len(evaluated) - 3
    lineage = durable.read_json(folder / "early" / "model" / "lineage.json")
    assert lineage["checkpoint_step"] == best["step"]
    assert any("Stopping early" in message for message in read_messages(folder, "early"))
