"""A full disk: errors name the cause, no file is incomplete, and work resumes with free space."""

from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.http_api.dependencies import Services
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout, open_storage
from storage.manifest import verify_directory
from tests.faults.conftest import SmallDisk
from tests.faults.ledger import find_torn_files
from tests.training_process import (
    Steps,
    finish,
    read_messages,
    read_steps,
    start,
    wait_for_step,
    write_inputs,
)
from tests.written_checkpoint import write_whole
from training.__main__ import PAUSED_STATUS
from training.export.consolidate import consolidate_checkpoint
from training.monitoring.tracker_thread import Tracker
from training.monitoring.trackers import open_trackers
from training.run.folder import RunFolder
from training.spec import TrainingSpec

pytestmark = pytest.mark.anyio
ENOUGH_BYTES = 64 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def layout(small_disk: SmallDisk, tiny_model: Path) -> StorageLayout:
    layout = open_storage(small_disk.path / "storage")
    store = ModelStore(layout)
    store.add(tiny_model, "tiny")
    store.add(tiny_model, "other")
    store.point_alias("latest", "tiny")
    return layout


async def test_upload_on_full_disk_leaves_no_files(
    client: httpx.AsyncClient, services: Services, small_disk: SmallDisk, layout: StorageLayout
) -> None:
    small_disk.leave_free(8_192)
    form = {"purpose": "fine-tune"}
    rows = {"file": ("rows.jsonl", b'{"text": "Twelve."}\n' * 490)}
    refused = await client.post("/v1/files", data=form, files=rows)
    assert refused.status_code == 507, refused.text
    assert (await client.get("/v1/files")).json()["data"] == []
    assert [path.name for path in layout.files.iterdir() if not path.name.startswith(".")] == []
    small_disk.resize(ENOUGH_BYTES)
    accepted = await client.post("/v1/files", data=form, files=rows)
    assert accepted.status_code == 200, accepted.text


async def test_alias_is_unchanged_on_full_disk(
    client: httpx.AsyncClient, small_disk: SmallDisk, layout: StorageLayout
) -> None:
    small_disk.leave_free(0)
    refused = await client.put("/v1/aliases/latest", json={"model": "other"})
    assert refused.status_code == 507, refused.text
    assert (await client.get("/v1/aliases/latest")).json()["model"] == "tiny"
    small_disk.resize(ENOUGH_BYTES)
    moved = await client.put("/v1/aliases/latest", json={"model": "other"})
    assert moved.json()["model"] == "other"
    assert [move["model"] for move in moved.json()["history"]] == ["tiny", "other"]
    assert find_torn_files(layout.root) == []


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.96])
def test_consolidation_on_full_disk_leaves_no_files(
    small_disk: SmallDisk, tiny_model: Path, share: float
) -> None:
    """The disk becomes full while the weights, or one of the files after them, are written."""
    checkpoint = write_whole(
        small_disk.path / "checkpoint", AutoModelForCausalLM.from_pretrained(tiny_model)
    )

    def consolidate(output: str) -> None:
        consolidate_checkpoint(
            checkpoint, str(tiny_model), small_disk.path / output, dtype=torch.float32
        )

    before = small_disk.count_used_bytes()
    consolidate("whole")
    size = small_disk.count_used_bytes() - before
    small_disk.leave_free(int(share * size))
    with pytest.raises(OSError, match="No space left"):
        consolidate("model")
    assert {path.name for path in small_disk.path.iterdir()} == {"checkpoint", "whole"}
    small_disk.resize(ENOUGH_BYTES)
    consolidate("model")
    verify_directory(small_disk.path / "model")


def log_many_steps(tracker: Tracker) -> None:
    for step in range(2, 10_000):
        tracker.log({"loss": 1.0}, step)


@pytest.mark.timeout(60)
def test_tensorboard_does_not_block_training_on_full_disk(small_disk: SmallDisk) -> None:
    """TensorBoard's own writer thread ended on a full disk, and its queue was never read again."""
    run = RunFolder(small_disk.path / "run")
    run.path.mkdir()
    spec = TrainingSpec(base_model="tiny", train_file="rows.jsonl")
    with open_trackers(spec, run, 0, is_reporting=True) as (tensorboard,):
        tensorboard.log({"loss": 1.0}, 1)
        small_disk.leave_free(0)
        with pytest.raises(OSError, match=r"^\[Errno 28\] No space left"):
            log_many_steps(tensorboard)
        small_disk.resize(ENOUGH_BYTES)  # to close the file


@pytest.mark.long
@pytest.mark.e2e
def test_run_pauses_on_full_disk_and_resumes_with_free_space(
    small_disk: SmallDisk, whole: Steps
) -> None:
    folder = write_inputs(small_disk.path)
    with start(folder, "full") as process:
        wait_for_step(folder, "full", 6, process)
        small_disk.leave_free(0)
        assert finish(process) == PAUSED_STATUS
    assert not any("was lost" in message for message in read_messages(folder, "full"))
    small_disk.resize(ENOUGH_BYTES)
    with start(folder, "full") as process:
        assert finish(process) == 0
    assert find_torn_files(folder / "full") == []
    assert read_steps(folder, "full") == whole


@pytest.mark.long
@pytest.mark.e2e
def test_run_without_space_for_checkpoints_is_rejected_at_start(
    small_disk: SmallDisk,
) -> None:
    folder = write_inputs(small_disk.path)
    small_disk.leave_free(300_000)  # enough for the record and the rows, but not a checkpoint
    with start(folder, "full") as process:
        assert finish(process) == 2
    messages = read_messages(folder, "full")
    assert any("at least" in message and "are needed" in message for message in messages)
    assert "Starting the workers" not in messages
