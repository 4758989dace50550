"""Runs that are killed, paused and extended on a real Ray cluster continue without a difference."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from storage import durable
from system.process_ends import wait_for_ends
from tests.e2e.conftest import ROOT
from tests.process_tree import find_descendants
from tests.training_process import (
    EXACT,
    TIMEOUT_S,
    Steps,
    TrainedFolder,
    finish,
    kill,
    read_messages,
    read_steps,
    start,
    wait_for_step,
)
from tests.waiting import wait_until
from training.__main__ import PAUSED_STATUS

pytestmark = [pytest.mark.e2e, pytest.mark.trains]

PAUSE_MARGIN_S = 30.0  # beyond its time limit, as documented in docs/operations.md


@pytest.fixture
def folder(trained_folder: TrainedFolder) -> Path:
    return trained_folder.path


def find_workers(process: "subprocess.Popen[bytes]", method: str = "") -> list[psutil.Process]:
    """Return the workers of a run; Ray sets their process titles to their current method."""
    assert process.poll() is None
    return find_descendants(f"RayTrainWorker{method}", psutil.Process(process.pid))


@pytest.mark.long
def test_lost_workers_are_replaced(
    folder: Path, whole: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is killed as it starts, another one hangs; the chaos test kills training workers.

    A cluster of two CPUs has no room for two worker groups at the same time.
    """
    monkeypatch.setenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "6")
    with start(folder, "worker", cpus_per_worker=0.9) as process:
        # Ray Train itself gives up if a worker ends while it receives the training function.
        starting = wait_until(
            lambda: find_workers(process, ".run_train_fn"), TIMEOUT_S, "a worker starts"
        )
        starting[0].kill()
        wait_for_step(folder, "worker", 12, process)
        workers = find_workers(process)
        assert len(workers) == 2
        workers[0].suspend()
        assert finish(process) == 0
    assert read_steps(folder, "worker") == whole
    messages = read_messages(folder, "worker")
    assert any("A worker was lost as it started" in message for message in messages)
    assert any(re.search(r"was lost: it did not answer for \d", message) for message in messages)
    assert any(message.startswith("Resuming after step") for message in messages)


def test_run_resumes_after_kill_and_after_pause_timeout(folder: Path, whole: Steps) -> None:
    with start(folder, "job") as process:
        wait_for_step(folder, "job", 13, process)
        kill(process)
    num_steps = len(read_steps(folder, "job"))
    assert num_steps < len(whole)
    with start(folder, "job", arguments=("--pause-timeout", "2")) as process:
        wait_for_step(folder, "job", num_steps + 3, process)
        children = psutil.Process(process.pid).children(recursive=True)
        for worker in find_workers(process):
            worker.suspend()
        process.send_signal(signal.SIGTERM)
        assert process.wait(2 + PAUSE_MARGIN_S) == PAUSED_STATUS
        assert not wait_for_ends(children, 5)
    assert durable.read_json(folder / "job" / "run.json")["status"] == "paused"
    with start(folder, "job") as process:
        assert finish(process) == 0
    assert read_steps(folder, "job") == whole
    messages = read_messages(folder, "job")
    assert sum("did not pause within 2 s" in message for message in messages) == 1
    assert sum(message.startswith("Resuming after step") for message in messages) == 2


@pytest.mark.long
def test_killed_ddp_run_takes_the_same_steps_as_zero(folder: Path, exact: Steps) -> None:
    with start(folder, "replicated", strategy="ddp", **EXACT) as process:
        wait_for_step(folder, "replicated", 8, process)
        kill(process)
    assert len(read_steps(folder, "replicated")) < len(exact)
    with start(folder, "replicated", strategy="ddp", **EXACT) as process:
        assert finish(process) == 0
    found = read_steps(folder, "replicated")
    for name in ("loss", "eval_loss"):
        values = [step[name] for step in exact if name in step]
        assert [step[name] for step in found if name in step] == pytest.approx(values, rel=1e-4)
    messages = read_messages(folder, "replicated")
    assert sum(message.startswith("Resuming after step") for message in messages) == 1
    assert durable.read_json(folder / "replicated" / "model" / "verification.json")["passed"]


@pytest.mark.long
def test_paused_run_resumes_with_other_number_of_workers(folder: Path, whole: Steps) -> None:
    """Two workers, then one; `test_equality` also resumes with more."""
    with start(folder, "resized", num_workers=2) as process:
        wait_for_step(folder, "resized", 8, process)
        process.send_signal(signal.SIGINT)
        assert finish(process) == PAUSED_STATUS
    assert durable.read_json(folder / "resized" / "run.json")["status"] == "paused"
    num_steps = len(read_steps(folder, "resized"))
    with start(folder, "resized", num_workers=1) as process:
        assert finish(process) == 0
    messages = read_messages(folder, "resized")
    sizes = [message for message in messages if "up on cpu" in message]
    assert [int(message.split()[0]) for message in sizes] == [2, 1]
    resumed = [message for message in messages if message.startswith("Resuming after step")]
    (step,) = (int(re.findall(r"\d+", message)[0]) for message in resumed)
    assert 8 <= step == num_steps < len(whole)
    expected = [step["loss"] for step in whole]
    assert [step["loss"] for step in read_steps(folder, "resized")] == pytest.approx(
        expected, rel=1e-2
    )


def test_consolidation_example_of_readme_works(folder: Path, whole: Steps) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (example,) = (block for block in blocks if "training.export.consolidate" in block)
    example = example.replace("my-run", "whole").replace(".venv/bin/python", sys.executable)
    subprocess.run(["sh", "-ec", example], cwd=folder, check=True, timeout=TIMEOUT_S)
    assert (folder / "another-model" / "model.safetensors").is_file()


@pytest.mark.long
def test_finished_run_is_extended(folder: Path, whole: Steps) -> None:
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


@pytest.mark.long
def test_fine_tuned_model_can_be_fine_tuned(folder: Path, whole: Steps) -> None:
    with start(folder, "further", base_model="whole/model", epochs=1) as process:
        assert finish(process) == 0
    lineage = durable.read_json(folder / "further" / "model" / "lineage.json")
    assert lineage["parent"]["run_id"] == "whole"
    assert lineage["parent"]["base_model"] == "tiny"
    first = read_steps(folder, "further")[0]
    assert first["loss"] < whole[0]["loss"] / 2, "training continues from the trained weights"


@pytest.mark.long
def test_training_stops_early_and_keeps_best_checkpoint(folder: Path) -> None:
    """With uninformative labels, more steps only fit noise."""
    settings: dict[str, Any] = {
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
