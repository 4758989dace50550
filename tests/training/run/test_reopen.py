import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.run.reopen import RerunError, reopen_run
from training.run.run_record import Extension, RunError, RunRecord, RunStatus
from training.spec import TrainingSpec

SHA256 = "ab" * 32
BEGUN = {
    "base_model": "m",
    "train_file": "f",
    "validation_fraction": 0.1,
    "precision": "fp32",
    "save_every_steps": 100,
}

CHANGEABLE: dict[str, Any] = {
    "export_dtype": "bf16",
    "accelerator": "cpu",
    "activation_checkpointing": True,
    "cpus_per_worker": 1.0,
    "data_memory_mb": 512,
    "early_stopping_patience": 2,
    "epochs": 4,
    "evaluate_every_steps": 5,
    "keep": "best",
    "keep_checkpoints": 3,
    "max_failures": 0,
    "min_workers": 1,
    "num_workers": 4,
    "save_every_steps": 5,
    "threads_per_worker": 2,
    "trackers": ("mlflow",),
    "train_file": "elsewhere/f",
    "wall_clock_breakdown": True,
}
FIXED: dict[str, Any] = {
    "learned_turns": "last",
    "reasoning": "drop",
    "template_arguments": {"enable_thinking": False},
    "base_model": "n",
    "validation_fraction": 0.2,
    "format": "chat",
    "columns": {"prompt": "question"},
    "max_length": 64,
    "overlong": "drop",
    "text_rows": "document",
    "max_rows": 5,
    "warmup_steps": 3,
    "learning_rate": 2e-4,
    "lr_schedule": "linear",
    "warmup_ratio": 0.1,
    "weight_decay": 0.0,
    "adam_betas": (0.9, 0.999),
    "adam_epsilon": 1e-6,
    "max_grad_norm": 0.5,
    "micro_batch_tokens": 2048,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "batch_layout": "flattened",
    "precision": "bf16",
    "seed": 1,
    "zero_stage": 2,
    "adapter": {"rank": 4},
    "offload_optimizer": True,
    "offload_parameters": True,
    "deepspeed": {"steps_per_print": 5},
    "task": "sequence_classification",
    "best_direction": "highest",
    "strategy": "ddp",
    "pipeline_partition": "uniform",
    "data_engine": "ray",
    "shuffle_window": 5000,
}
LOOP = {"loop": "a:b", "precision": "auto", "save_every_steps": None}
CLASSIFICATION = {"task": "sequence_classification"}
# Settings that replace others, which must be removed.
REPLACED: dict[str, dict[str, Any]] = {
    "train_files": {"train_file": None, "train_files": [{"file": "f"}]},
    "train_dataset": {"train_file": None, "train_dataset": {"id": "owner/rows"}},
    "validation_file": {"validation_fraction": 0, "validation_file": "v"},
    "validation_dataset": {"validation_fraction": 0, "validation_dataset": {"id": "owner/rows"}},
    "task_settings": {**CLASSIFICATION, "task_settings": {"class_weights": "balanced"}},
    "best_metric": {**CLASSIFICATION, "best_metric": "f1"},
    "loop": LOOP,
    "loop_config": {**LOOP, "loop_config": {"batch_size": 4}},
    "loop_split": {**LOOP, "loop_split": "none"},
    "quantization": {"adapter": {}, "zero_stage": 2, "quantization": "nf4"},
    "base_adapter": {"adapter": {}, "base_adapter": "a"},
    "pipeline_stages": {"strategy": "pipeline", "num_workers": 4, "pipeline_stages": 2},
}


def make_spec(**settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate({**BEGUN, **settings})


def make_run(folder: Path, status: RunStatus, **record: Any) -> RunFolder:
    run = RunFolder(folder / "run-1")
    run.create(make_spec(), RunRecord(id="run-1", status=status, created_at=1, **record))
    run.data.mkdir()
    durable.write_json(run.data / "summary.json", {"fingerprint": SHA256, "num_rows": 3})
    for step in range(1, 7):
        run.metrics.add({"step": step, "loss": 1 / step})
    checkpoint = run.checkpoints / "checkpoint_0000000006"
    checkpoint.mkdir(parents=True)
    progress = Progress(step=6, num_shares=1).model_dump()
    manifest = {"rank": 0, "world_size": 1, "progress": progress, "files": {}}
    durable.write_json(checkpoint / "manifest-00000.json", manifest)
    return run


@pytest.mark.parametrize("status", ["failed", "cancelled", "paused", "running"])
def test_interrupted_run_is_resumed(tmp_path: Path, status: RunStatus) -> None:
    error = RunError(code="TrainingFailedError", message="lost")
    run = make_run(tmp_path, status, started_at=2, finished_at=3, error=error)
    run.model.mkdir()
    spec = reopen_run(run, make_spec(), SHA256)
    assert spec == run.read_spec() == make_spec()
    record = run.read_record()
    assert (record.status, record.finished_at, record.error) == ("queued", None, None)
    assert (record.created_at, record.started_at, record.extends) == (1, 2, ())
    assert run.model.is_dir()
    assert run.events.read()[-1]["message"] == f"Starting again; it was {status}"


@pytest.mark.parametrize("name", CHANGEABLE)
def test_setting_that_does_not_affect_steps_may_change(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, "failed")
    spec = reopen_run(run, make_spec(**{name: CHANGEABLE[name]}), SHA256)
    assert getattr(spec, name) == getattr(run.read_spec(), name) == CHANGEABLE[name]


@pytest.mark.parametrize("name", [*FIXED, *REPLACED])
def test_changed_setting_that_affects_steps_is_refused_by_name(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, "failed")
    before = run.spec_file.read_bytes(), run.record_file.read_bytes()
    spec = make_spec(**REPLACED.get(name, {name: FIXED.get(name)}))
    with pytest.raises(RerunError) as caught:
        reopen_run(run, spec, SHA256)
    message = str(caught.value)
    assert f"{name} was {getattr(make_spec(), name)!r} and is {getattr(spec, name)!r}" in message
    assert message.startswith("run 'run-1' was started with other settings")
    assert message.endswith("Restore them, or choose a new folder")
    assert (run.spec_file.read_bytes(), run.record_file.read_bytes()) == before
    assert run.events.read() == []


def test_pipeline_resumes_only_with_the_same_number_of_workers(tmp_path: Path) -> None:
    run = make_run(tmp_path, "failed")
    pipeline = {"strategy": "pipeline", "pipeline_stages": 2}
    run.write_spec(make_spec(**pipeline, num_workers=2))
    with pytest.raises(RerunError, match="^num_workers was 2 and is 4: a pipeline resumes with"):
        reopen_run(run, make_spec(**pipeline, num_workers=4), SHA256)


def test_each_setting_is_classified_as_changeable_or_fixed() -> None:
    known = [*CHANGEABLE, *FIXED, *REPLACED, "max_steps"]  # max_steps may be increased
    assert sorted(known) == sorted(TrainingSpec.model_fields)


def test_all_changed_settings_are_reported_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, "failed")
    with pytest.raises(
        RerunError, match="^run 'run-1' was started with other settings, .*seed was 0 and is 1"
    ) as caught:
        reopen_run(run, make_spec(seed=1, epochs=9, zero_stage=1), SHA256)
    assert "zero_stage was 3 and is 1" in str(caught.value)
    assert "epochs" not in str(caught.value)


def test_auto_precision_keeps_resolved_value(tmp_path: Path) -> None:
    run = make_run(tmp_path, "failed")
    assert reopen_run(run, make_spec(precision="auto"), SHA256).precision == "fp32"
    assert run.read_spec().precision == "fp32"


def test_changed_rows_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, "failed")
    with pytest.raises(RerunError, match="^the rows have changed since run 'run-1' was started"):
        reopen_run(run, make_spec(), "cd" * 32)
    assert run.read_record().status == "failed"


@pytest.mark.parametrize("status", ["failed", "succeeded"])
def test_run_cannot_be_shortened(tmp_path: Path, status: RunStatus) -> None:
    run = make_run(tmp_path, status)
    with pytest.raises(
        RerunError, match="^epochs was 3 and is 2: a run can be extended, not shortened$"
    ):
        reopen_run(run, make_spec(epochs=2), SHA256)


def make_limited_run(folder: Path, status: RunStatus, max_steps: int) -> RunFolder:
    run = make_run(folder, status)
    run.write_spec(make_spec(max_steps=max_steps))
    return run


@pytest.mark.parametrize("max_steps", [8, None])
def test_run_ended_at_max_steps_is_extended_by_raising_it(
    tmp_path: Path, max_steps: int | None
) -> None:
    run = make_limited_run(tmp_path, "succeeded", 6)  # all 6 steps are complete
    with pytest.raises(
        RerunError,
        match="^run 'run-1' has succeeded already, with 3 epochs and max_steps 6; raise "
        "max_steps to extend it",
    ):
        reopen_run(run, make_spec(max_steps=6, epochs=9), SHA256)
    assert reopen_run(run, make_spec(max_steps=max_steps), SHA256).max_steps == max_steps
    message = run.events.read()[-1]["message"]
    assert message.startswith("Extending from 3 epochs and max_steps 6 to 3 epochs")


def test_run_ended_with_its_epochs_is_extended_by_raising_epochs(tmp_path: Path) -> None:
    run = make_limited_run(tmp_path, "succeeded", 100)
    with pytest.raises(
        RerunError,
        match="^run 'run-1' has succeeded already, with 3 epochs and max_steps 100; raise "
        "epochs to extend it",
    ):
        reopen_run(run, make_spec(max_steps=200), SHA256)
    assert reopen_run(run, make_spec(max_steps=100, epochs=4), SHA256).epochs == 4


@pytest.mark.parametrize("was", [6, None])
def test_max_steps_cannot_be_lowered(tmp_path: Path, was: int | None) -> None:
    run = make_run(tmp_path, "failed")
    run.write_spec(make_spec(max_steps=was))
    with pytest.raises(
        RerunError, match=f"^max_steps was {was} and is 5: a run can be extended, not shortened$"
    ):
        reopen_run(run, make_spec(max_steps=5), SHA256)


def test_files_of_mix_may_move_but_not_change_weight(tmp_path: Path) -> None:
    def mix(**file: Any) -> TrainingSpec:
        return make_spec(train_file=None, train_files=[{"file": "f", **file}, {"file": "g"}])

    run = make_run(tmp_path, "failed")
    run.write_spec(mix(weight=2))
    with pytest.raises(
        RerunError,
        match="^run 'run-1' was started with other settings, which would change its steps: "
        "train_files was .*weight=2.0.* and is .*weight=3.0",
    ):
        reopen_run(run, mix(weight=3), SHA256)
    assert reopen_run(run, mix(file="elsewhere/f", weight=2), SHA256).train_files[0].weight == 2


def test_succeeded_run_without_more_epochs_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, "succeeded")
    with pytest.raises(
        RerunError,
        match="^run 'run-1' has succeeded already, with 3 epochs; raise epochs to extend",
    ):
        reopen_run(run, make_spec(keep_checkpoints=5), SHA256)
    assert run.read_record().status == "succeeded"
    assert run.read_spec() == make_spec()


def test_extension_keeps_previous_model(tmp_path: Path) -> None:
    run = make_run(tmp_path, "succeeded", model_id="model-1", finished_at=3)
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    spec = reopen_run(run, make_spec(epochs=5), SHA256)
    assert spec.epochs == run.read_spec().epochs == 5
    assert not run.model.exists()
    assert (run.path / "model-step-6" / "config.json").read_text() == "{}"
    record = run.read_record()
    assert (record.status, record.finished_at) == ("queued", None)
    (end,) = record.extends
    assert end == Extension(epochs=3, step=6, model_id="model-1", ended_at=end.ended_at)
    assert run.events.read()[-1]["message"] == "Extending from 3 epochs to 5 epochs"
    assert json.loads(run.record_file.read_text())["extends"] == [end.model_dump()]


def test_run_can_be_extended_repeatedly(tmp_path: Path) -> None:
    run = make_run(tmp_path, "succeeded")
    reopen_run(run, make_spec(epochs=4), SHA256)
    run.update_record(status="failed")
    reopen_run(run, make_spec(epochs=4), SHA256)
    assert [end.step for end in run.read_record().extends] == [6]
    run.metrics.add({"step": 8, "loss": 0.1})
    run.update_record(status="succeeded", model_id="model-2")
    reopen_run(run, make_spec(epochs=6), SHA256)
    ends = run.read_record().extends
    assert [(end.epochs, end.step, end.model_id) for end in ends] == [
        (3, 6, None),
        (4, 8, "model-2"),
    ]


def test_same_model_is_kept_once(tmp_path: Path) -> None:
    """This happens with `keep: best` if further epochs bring no improvement."""
    run = make_run(tmp_path, "succeeded")
    for epochs in (4, 5):
        run.model.mkdir()
        durable.write_json(run.model / "lineage.json", {"checkpoint_step": 2, "epochs": epochs})
        reopen_run(run, make_spec(epochs=epochs), SHA256)
        run.update_record(status="succeeded")
    assert not run.model.exists()
    assert durable.read_json(run.path / "model-step-2" / "lineage.json")["epochs"] == 5


def test_run_without_checkpoints_is_not_extended(tmp_path: Path) -> None:
    run = make_run(tmp_path, "succeeded")
    shutil.rmtree(run.ray)
    with pytest.raises(RerunError, match="^the checkpoints of run 'run-1' are gone"):
        reopen_run(run, make_spec(epochs=4), SHA256)
    assert run.read_record().status == "succeeded"
    assert len(run.metrics.read()) == 6


def test_published_model_leaves_no_copy_in_run_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path, "succeeded", model_id="model-1")
    reopen_run(run, make_spec(epochs=4), SHA256)
    assert not list(run.path.glob("model*"))
