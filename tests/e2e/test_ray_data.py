"""Rows that Ray Data streams on a real cluster, compared with the engine `local`."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.process_tree import find_descendants
from tests.training_process import (
    EXACT,
    ROWS,
    Steps,
    finish,
    kill,
    read_messages,
    read_steps,
    start,
    wait_for_step,
    write_inputs,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.trains,
    pytest.mark.long,
    pytest.mark.usefixtures("forked_workers"),
]

SETTINGS: dict[str, Any] = {**EXACT, "cpus_per_worker": 0.5}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all runs, with a small object store."""
    context: Any = ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 << 20
    )
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    yield
    if before is None:
        del os.environ["RAY_ADDRESS"]
    else:
        os.environ["RAY_ADDRESS"] = before
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("streamed"))


def find_training_workers() -> list[psutil.Process]:
    """Return the processes of this cluster that train."""
    return find_descendants("RayTrainWorker")


def test_stream_has_the_losses_of_tables_through_lost_workers_and_a_kill(
    folder: Path, exact: Steps
) -> None:
    with start(folder, "stream", data_engine="ray", **SETTINGS) as process:
        wait_for_step(folder, "stream", 7, process)
        find_training_workers()[0].send_signal(signal.SIGKILL)
        wait_for_step(folder, "stream", 12, process)
        kill(process)
    assert len(read_steps(folder, "stream")) < len(exact)
    with start(folder, "stream", data_engine="ray", **SETTINGS) as process:
        assert finish(process) == 0
    found = read_steps(folder, "stream")
    assert len(found) == len(exact) > 20
    for name in ("loss", "grad_norm", "eval_loss"):
        values = [step[name] for step in exact if name in step]
        assert [step[name] for step in found if name in step] == pytest.approx(values, rel=1e-6)
    messages = read_messages(folder, "stream")
    resumed = [message for message in messages if message.startswith("Resuming after step")]
    assert len(resumed) == 2
    # The cache has the row index: nothing was tokenised to resume.
    assert not (folder / "stream" / "data" / "train.arrow").read_bytes().count(b"input_ids")


def test_faults_are_reported_with_file_and_line_before_a_run_starts(folder: Path) -> None:
    rows = [json.dumps(row) for row in ROWS]
    rows[30] = "no JSON"
    rows[77] = json.dumps({"prompt": 5, "completion": "six"})
    (folder / "faulty.jsonl").write_text("\n".join(rows))
    found = []
    for engine in ("local", "ray"):
        output = f"faulty-{engine}"
        settings = {**SETTINGS, "train_file": "faulty.jsonl", "data_engine": engine}
        with start(folder, output, **settings) as process:
            assert finish(process) == 2
        (error,) = re.findall(r"error: .*", (folder / f"{output}.log").read_text(), re.DOTALL)
        found.append(" ".join(error.split()))
        assert not (folder / output).exists()
    assert found[0] == found[1]
    assert "faulty.jsonl: 2 of 90 rows cannot be used" in found[0]
    assert "(line 31)" in found[0]
    assert "(line 78)" in found[0]
