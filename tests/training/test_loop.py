"""The steps at which a worker evaluates, saves and stops.

`tests/e2e/test_training.py` tests the loop with real engines.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training import loop
from training.batching import BatchPlan, count_steps, plan_epoch
from training.data.row_table import RowTable, RowWriter
from training.data.text.encoding import TokenSample
from training.data.text.token_layout import TOKEN_LAYOUT
from training.engine import StepResult
from training.evaluation import Evaluation
from training.monitoring.journal import Journal
from training.place import Place
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.run.run_record import RunRecord
from training.spec import TrainingSpec
from training.task import open_default_objective


class FakeCheckpointWriter:
    """A replacement for the checkpoint writer that records the progress of each checkpoint."""

    def __init__(self, *_: Any) -> None:
        self.progress: list[Progress] = []

    def save(self, _engine: Any, progress: Progress, _probe: Any) -> None:
        self.progress.append(progress)

    def finish(self) -> None:
        pass


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> FakeCheckpointWriter:
    """A fake checkpoint writer, with steps and evaluations that compute nothing."""
    saved = FakeCheckpointWriter()

    def take_step(*_: Any, **__: Any) -> StepResult:
        return StepResult(
            loss=1.0,
            learning_rate=1e-4,
            grad_norm=1.0,
            num_targets=2,
            num_tokens=4,
            took_s=0.1,
            was_skipped=False,
            peak_memory_bytes=0,
            was_asked_to_stop=False,
        )

    monkeypatch.setattr(loop, "take_step", take_step)
    monkeypatch.setattr(loop, "evaluate", lambda *_: Evaluation(0.5, {}))
    monkeypatch.setattr(loop, "compute_probe", lambda *_: None)
    monkeypatch.setattr(loop, "CheckpointWriter", lambda *_: saved)
    return saved


@pytest.mark.parametrize("max_steps", [3, 4, 6, None])
def test_last_step_is_evaluated_and_saved(
    tmp_path: Path, saved: FakeCheckpointWriter, max_steps: int | None
) -> None:
    run = RunFolder(tmp_path / "run")
    run.data.mkdir(parents=True)
    for name in ("train.arrow", "validation.arrow"):
        with RowWriter(run.data / name, TOKEN_LAYOUT) as writer:
            for line in range(8):
                writer.write(TokenSample(line, np.arange(8, dtype=np.int32), np.ones(8, np.bool_)))
    spec = TrainingSpec.model_validate(
        {
            "base_model": "m",
            "train_file": "f",
            "validation_file": "v",
            "epochs": 2,
            "max_steps": max_steps,
            "micro_batch_tokens": 16,
            "num_workers": 1,
        }
    )
    run.create(spec, RunRecord(id="run", created_at=1, writer="job"))
    rows = RowTable(run.data / "train.arrow", TOKEN_LAYOUT)
    validation = RowTable(run.data / "validation.arrow", TOKEN_LAYOUT)
    plan = BatchPlan.from_spec(spec, "padded", 1)
    assert len(plan_epoch(rows.lengths, plan, 0)) == 4
    num_steps = count_steps(rows.lengths, plan, spec.epochs, spec.max_steps)
    place = Place(0, 1, torch.device("cpu"))
    journal = Journal(run, place, (), num_steps)
    objective = open_default_objective()
    engine: Any = None  # all that would use it is replaced
    worker = loop._Worker(spec, run, place, engine, plan, objective, rows, validation, journal)
    assert worker.walk(Progress(num_shares=1), num_steps) == "finished"
    last = max_steps or 8
    assert [progress.step for progress in saved.progress] == sorted({min(4, last), last})
    assert [progress.evaluated_step for progress in saved.progress] == sorted({min(4, last), last})
    assert saved.progress[-1].step_in_epoch == (last - 1) % 4 + 1
    assert [line["step"] for line in run.metrics.read()] == list(range(1, last + 1))
    ended = [event["data"]["epoch"] for event in run.events.read() if "epoch" in event["data"]]
    assert ended == [epoch + 1 for epoch in range(last // 4)]
