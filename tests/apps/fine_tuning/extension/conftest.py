"""A job that has succeeded, as its process leaves it."""

from pathlib import Path
from typing import Any

import pytest

from apps.fine_tuning.index.run_lookup import find_run
from apps.fine_tuning.queue import RunQueue
from storage import durable
from tests.apps.conftest import create_run
from tests.apps.fine_tuning.conftest import FIGURES
from training.base_model import find_revision
from training.run.folder import RunFolder
from training.run.progress import Progress

MODEL = "tiny-bread-abc"
NUM_STEPS = 4
"""Two epochs of two steps, with one of four rows in each half of a step."""


def add_checkpoint(run: RunFolder, step: int) -> Path:
    checkpoint = run.checkpoints / f"checkpoint_{step:010d}"
    (checkpoint / "state").mkdir(parents=True)
    (checkpoint / "latest").write_text("state")
    (checkpoint / "state" / "shard.pt").write_bytes(b"x" * 1000)
    files = {"state/shard.pt": {"size_bytes": 1000, "sha256": "0" * 64}}
    progress = Progress(step=step, num_shares=1).model_dump()
    manifest = {"rank": 0, "world_size": 1, "progress": progress, "files": files}
    durable.write_json(checkpoint / "manifest-00000.json", manifest)
    return checkpoint


async def create_succeeded(queue: RunQueue, file_id: str, **training: object) -> RunFolder:
    run = await create_run(
        queue,
        file_id,
        suffix="bread",
        priority=3,
        metadata={"team": "ovens"},
        training={"epochs": 2, "micro_batch_size": 2, **training},
    )
    for step in range(1, NUM_STEPS + 1):
        run.metrics.add({**FIGURES, "step": step, "num_steps": NUM_STEPS, "remaining_s": 0.0})
    add_checkpoint(run, NUM_STEPS)
    revision = find_revision(run.read_spec().base_model)
    run.update_record(
        status="succeeded", writer="job", model_id=MODEL, finished_at=5, base_revision=revision
    )
    return run


async def extend(queue: RunQueue, source: RunFolder, **body: Any) -> RunFolder:
    job = await queue.extend(source.path.name, body)
    return find_run(queue.layout, job["id"])


@pytest.fixture
async def succeeded(queue: RunQueue, file_id: str) -> RunFolder:
    return await create_succeeded(queue, file_id)
