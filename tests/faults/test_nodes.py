"""A node of a two-node cluster fails while a run has a worker on it, and is replaced."""

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.faults.processes import kill_tree
from tests.faults.settings import NUM_KILLS, SEED
from tests.training_process import (
    SPEC,
    Steps,
    finish,
    read_messages,
    read_steps,
    start,
    wait_for_step,
    write_inputs,
)

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NUM_LOSSES = max(2, NUM_KILLS)  # also a loss after a recovery
SETTINGS = {
    "epochs": SPEC["epochs"] * math.ceil(NUM_LOSSES / 3),  # enough steps between two kills
    "cpus_per_worker": 1.0,  # each node has one CPU, so each gets one worker
    "max_failures": 100,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_inputs(tmp_path)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of two nodes with one CPU each; `python -m training` joins it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


def kill_worker_node(cluster: Cluster) -> None:
    """Kill the raylet of the second node and its descendants, like a power failure."""
    (node,) = cluster.worker_nodes
    (raylet,) = node.all_processes["raylet"]
    kill_tree(psutil.Process(raylet.process.pid))
    cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def expected(folder: Path, request: pytest.FixtureRequest) -> Steps:
    """The steps of an uninterrupted run with the same number of epochs."""
    if SETTINGS["epochs"] == SPEC["epochs"]:
        steps: Steps = request.getfixturevalue("whole")
        return steps
    with start(folder, "whole", epochs=SETTINGS["epochs"]) as process:
        assert finish(process) == 0
    return read_steps(folder, "whole")


def test_run_resumes_after_loss_of_node(folder: Path, expected: Steps, cluster: Cluster) -> None:
    rng = random.Random(SEED)
    with start(folder, "killed", **SETTINGS) as process:
        last = 0
        for number in range(NUM_LOSSES):
            step = number * len(expected) // (NUM_LOSSES + 1)
            wait_for_step(folder, "killed", max(step, last) + 1, process)  # training has resumed
            time.sleep(rng.uniform(0.0, 1.0))
            kill_worker_node(cluster)
            last = int(read_steps(folder, "killed")[-1]["step"])
            cluster.add_node(num_cpus=1)
        assert finish(process) == 0
    assert read_steps(folder, "killed") == expected
    messages = read_messages(folder, "killed")
    assert sum("was lost" in message for message in messages) == NUM_LOSSES
