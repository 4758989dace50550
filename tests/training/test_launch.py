"""The checks that stand before a run's workers start; the rest is in tests/e2e/test_training.py."""

import shutil
from pathlib import Path

import pytest
import ray
import ray.exceptions
import ray.train

from training.base_model import UnknownModelError, find_revision
from training.launch import _fit_and_restart, execute_run
from training.runs import RunFolder, RunRecord
from training.spec import TrainingSpec


def test_a_run_does_not_start_from_another_base_model_than_before(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    spec = TrainingSpec(base_model=str(base), train_file=str(tmp_path / "rows.jsonl"))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.create(
        spec,
        RunRecord(id="run", created_at=1, writer="job", base_revision=find_revision(str(base))),
    )
    (base / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(UnknownModelError, match="is not the one that this run was started with"):
        execute_run(run, spec)
    record = run.read_record()
    assert record.status == "failed"
    assert record.error is not None
    assert "its content was" in record.error.message


def test_a_run_does_not_start_from_a_model_whose_lineage_cannot_be_read(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    (base / "lineage.json").write_text('{"format_version": "2.0"}')
    spec = TrainingSpec(base_model=str(base), train_file=str(tmp_path / "rows.jsonl"))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.create(spec, RunRecord(id="run", created_at=1, writer="job"))
    with pytest.raises(UnknownModelError, match="lineage of the base model 'base'.*format is 2.0"):
        execute_run(run, spec)


class FailingTrainer:
    """Fails at its first calls of `fit`, each with one of the given errors."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def fit(self) -> str:
        if self._errors:
            raise ray.train.ControllerError(self._errors.pop(0))
        return "result"


LOST = ray.exceptions.ActorDiedError()


def test_a_worker_that_ends_as_it_starts_is_replaced(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert _fit_and_restart(FailingTrainer(LOST, LOST), run, max_failures=2) == "result"
    events = run.read_events()
    assert [event["level"] for event in events] == ["warn", "warn"]
    assert all("A worker was lost as it started" in event["message"] for event in events)


@pytest.mark.parametrize(
    ("errors", "max_failures"), [([LOST], 0), ([LOST, LOST], 1), ([ValueError("other")], 3)]
)
def test_a_training_that_keeps_failing_ends(
    tmp_path: Path, errors: list[Exception], max_failures: int
) -> None:
    with pytest.raises(ray.train.ControllerError):
        _fit_and_restart(FailingTrainer(*errors), RunFolder(tmp_path), max_failures)
