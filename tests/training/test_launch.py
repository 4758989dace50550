"""The checks that stand before a run's workers start; the rest is in tests/e2e/test_training.py."""

import shutil
from pathlib import Path

import pytest
import ray

from training.base_model import UnknownModelError, find_revision
from training.launch import execute_run
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
