"""A run that continues another one has its state, and shares no file that may change."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

from storage import durable
from training.checkpoint.format import list_checkpoints, read_last_complete
from training.run.continuation import COPY_LOCK, MissingStateError, copy_state, discard_copy
from training.run.folder import RunBusyError, RunFolder
from training.run.progress import Progress
from training.run.run_record import Extension, RunRecord
from training.spec import TrainingSpec

SUMMARY = {"fingerprint": "ab" * 32, "num_rows": 3}


def make_source(folder: Path, **settings: Any) -> RunFolder:
    """Return a run with checkpoints of the steps 2 and 4, and all else that it writes."""
    run = RunFolder(folder / "run-1")
    spec = TrainingSpec.model_validate({"base_model": "m", "train_file": "f", **settings})
    run.create(spec, RunRecord(id="run-1", status="succeeded", created_at=1))
    for step in (2, 4):
        checkpoint = run.checkpoints / f"checkpoint_{step:010d}"
        (checkpoint / "state").mkdir(parents=True)
        (checkpoint / "latest").write_text("state")
        (checkpoint / "state" / "shard.pt").write_bytes(f"weights of step {step}".encode())
        progress = Progress(step=step, num_shares=1).model_dump()
        manifest = {"rank": 0, "world_size": 1, "progress": progress, "files": {}}
        durable.write_json(checkpoint / "manifest-00000.json", manifest)
    (run.checkpoints / "checkpoint_0000000006").mkdir()  # incomplete
    for step in range(1, 5):
        run.metrics.add({"step": step, "loss": 1 / step})
    durable.append_json_line(run.evaluations.path, {"step": 4, "loss": 0.5})
    (run.path / "tensorboard").mkdir()
    (run.path / "tensorboard" / "events").write_bytes(b"figures")
    run.data.mkdir()
    (run.data / "train.arrow").write_bytes(b"tokens")
    (run.data / "references-training.safetensors").write_bytes(b"references")
    durable.write_json(run.data / "summary.json", SUMMARY)
    return run


def make_target(folder: Path) -> RunFolder:
    run = RunFolder(folder / "run-2")
    record = RunRecord(id="run-2", status="validating_files", created_at=2, extended_from="run-1")
    run.create(TrainingSpec(base_model="m", train_file="f", epochs=5), record)
    return run


def read_tree(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def do_nothing() -> None:
    pass


def kill_copy(source: RunFolder, target: RunFolder, num_files: int) -> NoReturn:
    """Copy, and end this process as a kill does before it has copied so many files."""
    num_copied = 0

    def kill() -> None:
        nonlocal num_copied
        num_copied += 1
        if num_copied == num_files:
            os._exit(9)

    try:
        copy_state(source, target, kill)
    finally:
        os._exit(1)


def test_state_is_copied_and_survives_the_deletion_of_its_source(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    before = read_tree(source.path)
    assert copy_state(source, target, do_nothing) == 4
    assert read_tree(source.path) == before
    shutil.rmtree(source.path)
    assert [found.step for found in list_checkpoints(target.checkpoints)] == [4, 2]
    assert read_last_complete(target.checkpoints) == 4
    copied = read_tree(target.path)
    for name in (
        "ray/checkpoints/checkpoint_0000000004/state/shard.pt",
        "ray/checkpoints/checkpoint_0000000002/manifest-00000.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "tensorboard/events",
        "data/train.arrow",
        "data/references-training.safetensors",
    ):
        assert copied[name] == before[name]
    assert target.read_data_summary() == SUMMARY
    assert not any("checkpoint_0000000006" in name for name in copied)
    assert target.read_record().id == "run-2", "the record of the source was copied"


def test_only_files_that_never_change_are_hard_links(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    copy_state(source, target, do_nothing)
    linked = {
        str(path.relative_to(target.path))
        for path in target.path.rglob("*")
        if path.is_file() and path.stat().st_nlink > 1
    }
    assert linked == {
        f"ray/checkpoints/checkpoint_000000000{step}/{name}"
        for step in (2, 4)
        for name in ("latest", "state/shard.pt")
    } | {"data/train.arrow", "data/references-training.safetensors"}
    target.metrics.add({"step": 5, "loss": 0.1})
    assert len(source.metrics.read()) == 4


def test_checkpoints_of_own_loop_are_copied(tmp_path: Path) -> None:
    source = make_source(tmp_path, loop="a:b")
    target = make_target(tmp_path)
    copy_state(source, target, do_nothing)
    shard = target.checkpoints / "checkpoint_0000000004" / "state" / "shard.pt"
    assert shard.stat().st_nlink == 1
    shard.write_bytes(b"changed by the loop")
    assert b"step 4" in read_tree(source.checkpoints)["checkpoint_0000000004/state/shard.pt"]


def test_files_are_copied_where_links_are_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    source, target = make_source(tmp_path), make_target(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    assert copy_state(source, target, do_nothing) == 4
    assert all(path.stat().st_nlink == 1 for path in target.path.rglob("*") if path.is_file())


def test_copy_needs_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    source, target = make_source(tmp_path), make_target(tmp_path)
    monkeypatch.setattr("training.run.continuation.measure_free_disk", lambda _: 10)
    assert not target.has_data
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        with pytest.raises(OSError, match=r"No space left on device: [\d,]+ bytes .*, 10 are free"):
            copy_state(source, target, do_nothing)
    assert not target.has_data
    assert copy_state(source, target, do_nothing) == 4, "links need no space"


@pytest.mark.parametrize("num_files", range(1, 11))
def test_copy_that_was_killed_at_any_file_is_repeated(tmp_path: Path, num_files: int) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    if (child := os.fork()) == 0:
        kill_copy(source, target, num_files)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert target.checkpoints.exists(), "the process has cleaned up"
    assert not target.has_data, "it counts as complete"
    copy_state(source, target, do_nothing)
    repeated = read_tree(target.path)
    other = RunFolder(tmp_path / "other")
    shutil.copytree(make_target(tmp_path / "fresh").path, other.path)
    copy_state(source, other, do_nothing)
    assert repeated == read_tree(other.path)


@pytest.mark.parametrize("num_files", range(1, 11))
def test_copy_that_fails_at_any_file_is_removed(tmp_path: Path, num_files: int) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    num_copied = 0

    def fail() -> None:
        nonlocal num_copied
        num_copied += 1
        if num_copied == num_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        copy_state(source, target, fail)
    assert not [name for name in ("ray", "data", "tensorboard") if (target.path / name).exists()]
    assert copy_state(source, target, do_nothing) == 4


def test_copy_of_a_killed_process_is_discarded(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    (target.checkpoints / "checkpoint_0000000004").mkdir(parents=True)
    target.data.mkdir()
    with target.lock(COPY_LOCK, 0.0):
        discard_copy(target)  # another process removes it itself
    assert target.checkpoints.exists()
    discard_copy(target)
    assert not target.ray.exists()
    assert not target.data.exists()
    copy_state(source, target, do_nothing)
    discard_copy(target)
    assert target.has_data, "a complete copy was removed"
    assert [found.step for found in list_checkpoints(target.checkpoints)] == [4, 2]


def test_copied_checkpoints_keep_their_times(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    for step in (2, 4):
        os.utime(source.checkpoints / f"checkpoint_{step:010d}", (1000, 1000 * step))
    copy_state(source, target, do_nothing)
    times = {
        found.step: found.path.stat().st_mtime for found in list_checkpoints(target.checkpoints)
    }
    assert times == {4: 4000.0, 2: 2000.0}


def test_folder_of_checkpoints_is_durable_before_the_copy_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    synced: list[Path] = []
    sync = durable.fsync_directory

    def note(folder: Path) -> None:
        if not target.has_data and target.checkpoints.exists():
            synced.append(folder)
        sync(folder)

    monkeypatch.setattr(durable, "fsync_directory", note)
    copy_state(source, target, do_nothing)
    assert {target.ray, target.checkpoints, target.path, target.data} <= set(synced)


def test_checkpoint_of_a_newer_release_is_not_skipped(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    manifest = source.checkpoints / "checkpoint_0000000004" / "manifest-00000.json"
    durable.write_json(manifest, {**durable.read_json(manifest), "format_version": "9.0"})
    with pytest.raises(MissingStateError, match="'checkpoint_0000000004' needs a newer version"):
        copy_state(source, target, do_nothing)
    assert not target.checkpoints.exists()


def test_other_checkpoint_than_the_expected_one_is_not_copied(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    target.update_record(extends=[Extension(epochs=3, step=4, model_id=None, ended_at=1)])
    shutil.rmtree(source.checkpoints / "checkpoint_0000000004")
    with pytest.raises(MissingStateError, match="is that of step 2, expected that of step 4"):
        copy_state(source, target, do_nothing)
    assert not target.checkpoints.exists()


def test_complete_copy_is_not_repeated(tmp_path: Path) -> None:
    """A task that outlived the queue must not replace what the training has written since."""
    source, target = make_source(tmp_path), make_target(tmp_path)
    copy_state(source, target, do_nothing)
    target.metrics.add({"step": 5, "loss": 0.1})
    assert copy_state(source, target, do_nothing) == 4
    assert len(target.metrics.read()) == 5


def test_state_is_copied_by_one_process_at_a_time(tmp_path: Path) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    with target.lock(COPY_LOCK, 0.0), pytest.raises(RunBusyError, match="copies checkpoints to"):
        copy_state(source, target, do_nothing)
    assert not target.checkpoints.exists()


@pytest.mark.parametrize(("folder", "missing"), [("ray", "checkpoints"), ("data", "rows")])
def test_missing_state_is_reported(tmp_path: Path, folder: str, missing: str) -> None:
    source, target = make_source(tmp_path), make_target(tmp_path)
    shutil.rmtree(source.path / folder)
    with pytest.raises(MissingStateError, match=f"^the {missing} of run 'run-1' are gone"):
        copy_state(source, target, do_nothing)
    assert not target.has_data
