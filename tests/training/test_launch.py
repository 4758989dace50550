"""The checks before a run's workers start; tests/e2e/test_training.py tests the rest."""

import shutil
from pathlib import Path
from threading import Event

import pytest
import ray

from tests.tiny_model import build_tiny_model
from training.base_model import UnknownModelError, find_revision
from training.checkpoint.format import record_complete
from training.cluster.ray_train import ClusterLostError
from training.export.zero_shards import ShardsError
from training.launch import _export_loop_model, execute_run
from training.own_loop.result import NoModelError
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec


def prepare_run_of_another_model(tiny_model: Path, tmp_path: Path) -> RunFolder:
    """Prepare a run that fails because its base model has changed since its start."""
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    spec = TrainingSpec(base_model=str(base), train_file=str(tmp_path / "rows.jsonl"))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.create(
        spec,
        RunRecord(id="run", created_at=1, writer="job", base_revision=find_revision(str(base))),
    )
    build_tiny_model(base, seed=1)
    return run


def test_run_with_changed_base_model_fails(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    run = prepare_run_of_another_model(tiny_model, tmp_path)
    with pytest.raises(
        UnknownModelError,
        match="^the base model 'base' is not the one that this run was started with: ",
    ):
        execute_run(run, run.read_spec())
    record = run.read_record()
    assert record.status == "failed"
    assert record.started_at == record.computing_since is not None
    assert record.error is not None
    assert "its content was" in record.error.message


def test_lost_cluster_error_reports_cluster_state_and_failure(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previously, a cluster that did not answer within 10 s under load was reported as ended."""
    may_return = Event()
    monkeypatch.setattr(ray, "nodes", may_return.wait)
    monkeypatch.setattr("training.cluster.cluster_state.ANSWER_TIMEOUT_S", 0.1)
    run = prepare_run_of_another_model(tiny_model, tmp_path)
    with pytest.raises(ClusterLostError) as caught:
        execute_run(run, run.read_spec())
    may_return.set()
    message = str(caught.value)
    assert message.startswith("the Ray cluster did not answer for 0.1 s; the run ended with: ")
    assert "is not the one that this run was started with" in message
    assert run.read_record().status == "running", "the queue resumes it"


def test_run_with_unreadable_base_model_lineage_fails(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    (base / "lineage.json").write_text('{"format_version": "2.0"}')
    spec = TrainingSpec(base_model=str(base), train_file=str(tmp_path / "rows.jsonl"))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.create(spec, RunRecord(id="run", created_at=1, writer="job"))
    with pytest.raises(
        UnknownModelError,
        match="^the lineage of the base model 'base' cannot be read: its format is 2.0",
    ):
        execute_run(run, spec)


def test_loop_without_a_model_succeeds_and_a_failed_export_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    spec = TrainingSpec(base_model="m", loop="a:b")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("training.launch._consolidate", fail)
    error: Exception = ShardsError("it is damaged")
    run.path.mkdir()
    _export_loop_model(run, spec)
    record_complete(run.checkpoints, 3)
    with pytest.raises(ShardsError, match="it is damaged"):
        _export_loop_model(run, spec)
    error = NoModelError("it has no model")
    _export_loop_model(run, spec)
    events = run.events.read()
    assert [event["code"] for event in events] == ["no_model", "no_model"]
    assert events[0]["message"] == "Nothing is published: the loop reported no checkpoint"
    assert events[1]["message"].startswith("Nothing is published: it has no model. The checkpoints")
