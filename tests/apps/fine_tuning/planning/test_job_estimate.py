"""Estimates of jobs: the steps and tokens of a run, and time from measured runs only."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from apps.errors import InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_validation import check_file
from serving.errors import InvalidRequestError
from storage.layout import StorageLayout
from tests.apps.conftest import ROW, NotedJobs, create_run
from training.batching import BatchPlan, plan_epoch

pytestmark = pytest.mark.anyio


@pytest.fixture
def varied_file(layout: StorageLayout) -> str:
    """A file of 40 rows of different lengths."""
    rows = [{**ROW, "completion": "loaf " * (1 + number % 9)} for number in range(40)]
    content = "".join(f"{json.dumps(row)}\n" for row in rows)
    FileStore(layout).add("file-varied", content.encode(), "varied.jsonl")
    return "file-varied"


async def estimate(queue: RunQueue, file_id: str, **training: Any) -> Any:
    return await queue.estimate({"model": "latest", "training_file": file_id, "training": training})


async def test_steps_and_tokens_are_those_of_the_run(
    queue: RunQueue, layout: StorageLayout, varied_file: str
) -> None:
    settings = {"epochs": 3, "micro_batch_tokens": 64, "num_workers": 2}
    found = await estimate(queue, varied_file, **settings)
    run = await create_run(queue, varied_file, training=settings)
    from training.data.row_table import RowTable
    from training.data.text.token_layout import TOKEN_LAYOUT
    from training.model import choose_layout

    lengths = RowTable(run.data / "train.arrow", TOKEN_LAYOUT).lengths
    spec = run.read_spec()
    plan = BatchPlan.from_spec(spec, choose_layout(spec, torch.device("cpu")), 2)
    assert found["num_steps"] == sum(len(plan_epoch(lengths, plan, epoch)) for epoch in range(3))
    assert found["num_tokens"] == 3 * int(np.sum(lengths))
    assert (found["num_rows"], found["is_exact"]) == (40, True)
    stopping = {"validation_fraction": 0.5, "evaluate_every_steps": 1, "early_stopping_patience": 1}
    assert not (await estimate(queue, varied_file, **settings, **stopping))["is_exact"]
    assert found["disk"]["needed_bytes"] > 0
    assert found["memory"]["total_bytes"] > found["memory"]["worker_bytes"] > 0


async def test_estimate_creates_no_job(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    await estimate(queue, file_id)
    assert not list(layout.runs.iterdir())


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"training": {"learning_rate": 0}}, InvalidInputError, "learning_rate"),
        ({"suffix": "../x"}, InvalidRequestError, "suffix"),
    ],
)
async def test_estimate_refuses_what_a_job_is_refused_for(
    queue: RunQueue, file_id: str, change: Any, error: Any, param: str
) -> None:
    with pytest.raises(error) as refused:
        await queue.estimate({"model": "latest", "training_file": file_id, **change})
    assert refused.value.param == param


@pytest.mark.usefixtures("no_quick_validation")
async def test_large_file_is_estimated_from_its_check(
    queue: RunQueue, layout: StorageLayout, varied_file: str
) -> None:
    unread = await estimate(queue, varied_file)
    assert (unread["num_steps"], unread["num_tokens"], unread["is_exact"]) == (None, None, False)
    check_file(layout, varied_file)
    settings = {"micro_batch_tokens": 64, "validation_fraction": 0.5}
    found = await estimate(queue, varied_file, **settings)
    check = FileStore(layout).get(varied_file)["check"]
    assert check is not None
    assert found["num_rows"] == 20
    assert found["num_tokens"] == round(check["num_tokens"] / 2) * 3
    assert found["num_steps"] >= found["num_tokens"] / (64 * 2)
    assert not found["is_exact"]


async def test_time_is_that_of_a_run_with_the_same_settings(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    assert (await estimate(queue, file_id))["training_s"] is None
    run = await create_run(queue, file_id)
    run.metrics.add(
        {"step": 8, "trained_tokens": 1000, "elapsed_s": 4.0, "peak_memory_bytes": 7 << 20}
    )
    found = await estimate(queue, file_id)
    assert found["tokens_per_s"] == 250.0
    assert found["training_s"] == pytest.approx(found["num_tokens"] / 250, abs=0.1)
    assert found["measured_by"] == run.path.name
    assert (found["memory"]["worker_bytes"], found["memory"]["is_measured"]) == (7 << 20, True)
    longer = await estimate(queue, file_id, epochs=6)
    assert longer["training_s"] == pytest.approx(2 * found["training_s"], abs=0.1)
    other = await estimate(queue, file_id, micro_batch_tokens=32)
    assert (other["training_s"], other["memory"]["is_measured"]) == (None, False)
