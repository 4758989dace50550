"""Runs that continue others in their own folders take the same steps as one that did not end."""

from pathlib import Path
from typing import Any

import pytest

from storage import durable
from tests.training.tasks.test_preference import write_rows
from tests.training_process import finish, read_messages, read_steps, start, write_inputs
from training.run.continuation import copy_state
from training.run.folder import RunFolder
from training.run.run_record import Extension, RunRecord
from training.spec import TrainingSpec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.trains,
    pytest.mark.usefixtures("forked_workers"),
]

SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "lr_schedule": "constant",
    "warmup_ratio": 0,
    "task": "preference",
    "adapter": {"rank": 4},
    "precision": "fp32",
    "micro_batch_tokens": 512,
    "micro_batch_size": 4,
    "validation_fraction": 0.25,
}
"""A run with figures of a reference model; `test_fine_tuning_api` extends one of all weights."""


def continue_run(source: RunFolder, target: RunFolder, epochs: int) -> None:
    """Create the run that continues another one, as the queue does."""
    spec, record = source.read_spec(), source.read_record()
    last = source.metrics.read_last()
    assert last is not None
    end = Extension(epochs=spec.epochs, step=int(last["step"]), model_id=None, ended_at=1)
    longer = TrainingSpec.model_validate({**spec.model_dump(), "epochs": epochs})
    new = RunRecord(
        id=target.path.name,
        created_at=2,
        base_revision=record.base_revision,
        extends=(end,),
        extended_from=record.id,
    )
    target.create(longer, new)
    assert copy_state(source, target, lambda: None) == end.step


def hash_files(run: RunFolder) -> dict[str, str]:
    """Hash the files of a run; those that it shares with another one are hard links."""
    files = (path for path in run.path.rglob("*") if path.is_file())
    return {str(path.relative_to(run.path)): durable.hash_file(path) for path in files}


def test_continued_run_equals_one_that_was_trained_so_long(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    write_rows(tmp_path / "rows.jsonl")
    for name, changes in (("long", SETTINGS), ("short", {**SETTINGS, "epochs": 1})):
        with start(tmp_path, name, **changes) as process:
            assert finish(process) == 0, (tmp_path / f"{name}.log").read_text()[-4000:]
    source, target = RunFolder(tmp_path / "short"), RunFolder(tmp_path / "continued")
    num_steps = len(source.metrics.read())
    continue_run(source, target, epochs=3)
    before = hash_files(source)
    with start(tmp_path, "continued", **SETTINGS) as process:
        assert finish(process) == 0, (tmp_path / "continued.log").read_text()[-4000:]
    steps = read_steps(tmp_path, "long")
    assert hash_files(source) == before, "the training has changed files of the extended run"
    assert 0 < num_steps < len(steps)
    assert read_steps(tmp_path, "continued") == steps
    messages = read_messages(tmp_path, "continued")
    assert f"Resuming after step {num_steps} of {len(steps)}" in messages
    assert not any("Computing the reference" in message for message in messages)
    assert durable.read_json(target.model / "verification.json")["passed"]
    lineage = durable.read_json(target.model / "lineage.json")
    assert lineage["extended_from"] == "short"
    assert [end["step"] for end in lineage["extends"]] == [num_steps]
