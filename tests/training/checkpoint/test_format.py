import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from storage.scratch import ScratchFolder
from tests.damage import damage
from tests.waiting import wait_until
from training.checkpoint.format import (
    TAG,
    Checkpoint,
    CheckpointError,
    find_damage,
    find_shards,
    list_checkpoints,
    read_checkpoint,
    read_last_complete,
)
from training.checkpoint.restore import find_start
from training.checkpoint.selection import choose_result
from training.checkpoint.writer import CheckpointWriter, agree_on_checkpoint
from training.place import Place
from training.run.folder import RunFolder
from training.run.progress import Progress

ALONE = Place(0, 1, torch.device("cpu"))
NOT_WRITTEN = "^a checkpoint could not be written: worker 0: "


class FakeEngine:
    """An engine that writes files like DeepSpeed's: a shard per rank, and `latest` on rank 0."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def save_checkpoint(self, folder: str, tag: str) -> None:
        shards = Path(folder) / tag
        shards.mkdir()
        (shards / f"zero_pp_rank_{self.rank}.pt").write_bytes(bytes(range(256)) * 40)
        if self.rank == 0:
            (shards / "mp_rank_00.pt").write_bytes(b"weights")
            (Path(folder) / "latest").write_text(tag)


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "local"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    return run


@pytest.fixture
def folder(run: RunFolder) -> Path:
    return run.checkpoints


def make_progress(step: int, best_step: int | None = None) -> Progress:
    return Progress(step=step, num_shares=1, best_step=best_step, epoch_loss_sum=0.1 + step)


def save(folder: Path, *steps: int, num_kept: int = 9, best_step: int | None = None) -> None:
    writer = CheckpointWriter(folder, ALONE, num_kept)
    for step in steps:
        writer.save(FakeEngine(), make_progress(step, best_step))
    writer.finish()


def save_as_two_workers(folder: Path, step: int) -> Checkpoint:
    """Save as rank 0 and rank 1 do, without the collective at the beginning of a later save."""
    writers = [CheckpointWriter(folder, Place(rank, 2, ALONE.device), 9) for rank in range(2)]
    for rank, writer in enumerate(writers):
        writer.save(FakeEngine(rank), make_progress(step))
    wait_until(lambda: read_last_complete(folder) == step, 10, "the checkpoint is complete")
    return list_checkpoints(folder)[0]


def save_first_half(folder: Path, step: int) -> Path:
    """Save as rank 0 of two workers does, of which the other one has been killed."""
    CheckpointWriter(folder, Place(0, 2, ALONE.device), 9).save(FakeEngine(), make_progress(step))
    path = folder / f"checkpoint_{step:010d}"
    wait_until((path / "manifest-00000.json").is_file, 10, "rank 0 has saved its half")
    return path


def list_names(folder: Path) -> list[str]:
    """Return the names in the folder of checkpoints, except the record of complete ones."""
    return sorted(path.name for path in folder.iterdir() if path.name != "last_complete.json")


def list_steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(folder)]


def test_checkpoint_is_complete_after_finish(folder: Path, local_disk: Path) -> None:
    progress = make_progress(7)
    writer = CheckpointWriter(folder, ALONE, 2)
    assert list_checkpoints(folder) == []
    writer.save(FakeEngine(), progress)
    writer.finish()
    (checkpoint,) = list_checkpoints(folder)
    assert checkpoint == Checkpoint(folder / "checkpoint_0000000007", 1, progress)
    assert checkpoint.step == 7
    assert find_damage(checkpoint, 0, 1) is None
    assert sorted(path.name for path in find_shards(checkpoint.path).iterdir()) == [
        "mp_rank_00.pt",
        "zero_pp_rank_0.pt",
    ]
    assert list(local_disk.iterdir()) == []


def test_save_waits_for_previous_checkpoint(folder: Path) -> None:
    writer = CheckpointWriter(folder, ALONE, 2)
    writer.save(FakeEngine(), make_progress(1))
    writer.save(FakeEngine(), make_progress(2))
    assert 1 in list_steps(folder)
    writer.finish()
    writer.finish()
    assert list_steps(folder) == [2, 1]


def test_list_checkpoints_sorts_newest_first(folder: Path) -> None:
    save(folder, 9, 10, 100, 99)
    assert list_steps(folder) == [100, 99, 10, 9]


@pytest.mark.parametrize("rank", [0, 1])
def test_list_checkpoints_skips_incomplete_checkpoint(folder: Path, rank: int) -> None:
    checkpoint = save_as_two_workers(folder, 4)
    assert (checkpoint.world_size, checkpoint.step) == (2, 4)
    (checkpoint.path / f"manifest-0000{rank}.json").unlink()
    assert list_checkpoints(folder) == []


@pytest.mark.parametrize(
    "damage", ["manifest", "no progress", "short file", "long file", "missing file", "no shards"]
)
def test_damaged_checkpoint_is_not_treated_as_missing(folder: Path, damage: str) -> None:
    """This happens after an aborted copy: a run that restarts would remove restorable data."""
    checkpoint = save_as_two_workers(folder, 4)
    shard = find_shards(checkpoint.path) / "zero_pp_rank_1.pt"
    manifest = checkpoint.path / "manifest-00000.json"
    if damage == "manifest":
        manifest.write_text("{")
    elif damage == "no progress":
        manifest.write_text(manifest.read_text().replace("progress", "egress"))
    elif damage == "short file":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "long file":
        shard.write_bytes(shard.read_bytes() + b"\0")
    elif damage == "missing file":
        shard.unlink()
    else:
        shard.parent.rename(folder.parent / "elsewhere")
    with pytest.raises(
        CheckpointError, match="^all 1 checkpoints are damaged; nothing was removed"
    ):
        agree_on_checkpoint(folder, ALONE)
    assert checkpoint.path.is_dir()


def test_each_worker_hashes_its_share_of_files(folder: Path) -> None:
    checkpoint = save_as_two_workers(folder, 4)
    damage(checkpoint.path / TAG / "zero_pp_rank_1.pt", "flipped")
    assert list_steps(folder) == [4]
    expected = f"{TAG}/zero_pp_rank_1.pt differs from what was written"
    assert find_damage(checkpoint, 0, 1) == expected
    assert [find_damage(checkpoint, rank, 2) for rank in range(2)] == [None, expected]
    assert [find_damage(checkpoint, rank, 3) for rank in range(3)] == [None, expected, None]


def test_damaged_checkpoint_is_skipped_for_previous_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1, 2, 3)
    newest, older, oldest = list_checkpoints(folder)
    assert agree_on_checkpoint(folder, ALONE) == newest
    damage(find_shards(newest.path) / "mp_rank_00.pt", "flipped")
    damage(older.path / "latest", "flipped")
    with caplog.at_level(logging.WARNING):
        assert agree_on_checkpoint(folder, ALONE) == oldest
    assert [record.message for record in caplog.records] == [
        f"checkpoint_0000000003 is damaged and is skipped: {TAG}/mp_rank_00.pt differs from what "
        "was written",
        "checkpoint_0000000002 is damaged and is skipped: latest differs from what was written",
    ]


@pytest.mark.parametrize("file", [f"{TAG}/mp_rank_00.pt", "manifest-00000.json"])
def test_damaged_checkpoint_emits_event(run: RunFolder, folder: Path, file: str) -> None:
    """Previously, it was only logged."""
    save(folder, 1, 2, 3)
    damage(folder / "checkpoint_0000000001" / "latest", "cut")  # not needed
    (folder / "checkpoint_0000000003" / file).write_text("{")
    start = find_start(run, ALONE)
    assert start is not None
    assert start.step == 2
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "checkpoint_damaged")
    assert event["data"] == {"checkpoint": "checkpoint_0000000003"}
    assert "'checkpoint_0000000003' is damaged and is skipped" in event["message"]


def test_run_with_incomplete_first_checkpoint_starts_at_step_0(
    run: RunFolder, folder: Path
) -> None:
    assert find_start(run, ALONE) is None
    run.metrics.add({"step": 4})
    save_first_half(folder, 4)
    assert find_start(run, ALONE) is None
    assert run.metrics.read() == []
    (quarantined,) = list_names(folder)
    assert quarantined.startswith(".quarantined-checkpoint_0000000004-")
    assert (folder / quarantined / "manifest-00000.json").is_file()
    save(folder, 4)
    assert list_names(folder) == ["checkpoint_0000000004"]


@pytest.mark.parametrize(
    ("invisible", "found"),
    [
        (
            "checkpoint_*/manifest-00001.json",
            "checkpoint_0000000008 with 1 of its manifests, "
            "checkpoint_0000000004 with 1 of its manifests",
        ),
        ("checkpoint_0000000008", "checkpoint_0000000004 with 1 of its manifests"),
        ("checkpoint_*", "no checkpoint"),
    ],
)
def test_invisible_checkpoints_raise_and_nothing_is_removed(
    run: RunFolder, folder: Path, tmp_path: Path, invisible: str, found: str
) -> None:
    """On NFS, a file that another node wrote may be invisible for a while."""
    for step in (4, 8):
        run.metrics.add({"step": step})
        save_as_two_workers(folder, step)
    hidden = [(path, tmp_path / f"hidden-{n}") for n, path in enumerate(folder.glob(invisible))]
    if invisible == "checkpoint_0000000008":  # and part of the other one
        hidden.append((folder / "checkpoint_0000000004/manifest-00000.json", tmp_path / "part"))
    for path, elsewhere in hidden:
        path.rename(elsewhere)
    before = sorted(run.path.rglob("*"))
    with pytest.raises(CheckpointError) as caught:
        find_start(run, ALONE)
    assert str(caught.value) == (
        "no complete checkpoint is found, although the checkpoint of step 8 was complete; found "
        f"{found}. Nothing was removed. If files are only invisible for the moment, resume the run "
        "later; if they are lost, restore them from a backup. To train from step 0 instead, remove "
        "'ray/checkpoints' and 'metrics.jsonl' from the run's folder"
    )
    assert sorted(run.path.rglob("*")) == before
    assert [line["step"] for line in run.metrics.read()] == [4, 8]
    for path, elsewhere in hidden:
        elsewhere.rename(path)
    start = find_start(run, ALONE)
    assert start is not None
    assert start.step == 8


@pytest.mark.parametrize("record", ["not seen", "damaged"])
@pytest.mark.parametrize(
    ("is_saved", "has_metrics", "reason"),
    [
        (True, True, "checkpoint_0000000004 may have been complete"),
        (True, False, "checkpoint_0000000004 may have been complete"),
        (False, True, "the run has trained 4 steps"),
    ],
)
def test_trained_run_without_completion_record_does_not_start_over(
    run: RunFolder, folder: Path, record: str, is_saved: bool, has_metrics: bool, reason: str
) -> None:
    """Runs of release 0.1 have no record."""
    folder.mkdir(parents=True)
    if is_saved:
        save_first_half(folder, 4)
    if has_metrics:
        run.metrics.add({"step": 4})
    if record == "damaged":
        (folder / "last_complete.json").write_text('{"step": "')
    with pytest.raises(
        CheckpointError, match=f"^no complete checkpoint is found, although {reason}"
    ):
        find_start(run, ALONE)


def test_two_checkpoints_without_manifests_imply_a_complete_one(
    run: RunFolder, folder: Path
) -> None:
    """This happens if a release that keeps no record trained the run in between."""
    assert find_start(run, ALONE) is None
    for step in (4, 8):
        save_first_half(folder, step)
    begun = "checkpoint_0000000008, checkpoint_0000000004"
    with pytest.raises(
        CheckpointError,
        match=f"^no complete checkpoint is found, although {begun} may have been complete",
    ):
        find_start(run, ALONE)


def test_resume_from_older_checkpoint_updates_last_complete_record(
    run: RunFolder, folder: Path
) -> None:
    save(folder, 4, 8)
    assert read_last_complete(folder) == 8
    damage(folder / "checkpoint_0000000008" / "latest", "flipped")
    start = find_start(run, ALONE)
    assert start is not None
    assert (start.step, read_last_complete(folder)) == (4, 4)


def test_run_with_all_checkpoints_damaged_does_not_start_over(folder: Path) -> None:
    save(folder, 1)
    damage(folder / "checkpoint_0000000001" / "latest", "flipped")
    with pytest.raises(
        CheckpointError, match="^all 1 checkpoints are damaged; nothing was removed"
    ):
        agree_on_checkpoint(folder, ALONE)
    assert list_steps(folder) == [1]


def test_checkpoint_with_damaged_manifest_is_skipped(folder: Path) -> None:
    save(folder, 1, 2)
    (folder / "checkpoint_0000000002" / "manifest-00000.json").write_text("{")
    assert list_steps(folder) == [1]


def change_manifest(folder: Path, step: int, **changes: object) -> str:
    path = folder / f"checkpoint_{step:010d}" / "manifest-00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path.read_text()


def test_manifest_of_newer_minor_format_version_is_read(folder: Path) -> None:
    save(folder, 1)
    path = folder / "checkpoint_0000000001" / "manifest-00000.json"
    assert json.loads(path.read_text())["format_version"] == "1.0"
    change_manifest(folder, 1, format_version="1.7", signed_by="ann")
    checkpoint = agree_on_checkpoint(folder, ALONE)
    assert checkpoint is not None
    assert checkpoint.step == 1


def test_checkpoint_of_newer_release_raises_and_is_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1, 2)
    written = change_manifest(folder, 2, format_version="2.0")
    assert list_steps(folder) == [1]
    newer = "^'checkpoint_0000000002' needs a newer version of Tuneserve: its format is 2.0"
    with pytest.raises(CheckpointError, match=f"{newer}.* Start the newer release again") as caught:
        agree_on_checkpoint(folder, ALONE)
    assert "'checkpoint_0000000002' needs a newer version of Tuneserve" in str(caught.value)
    assert "its format is 2.0, and this version writes" in str(caught.value)
    assert not any("damaged" in message for message in [*caplog.messages, str(caught.value)])
    manifest = folder / "checkpoint_0000000002" / "manifest-00000.json"
    assert manifest.read_text() == written
    with pytest.raises(CheckpointError, match=newer):
        read_checkpoint(manifest.parent)


def test_disk_error_is_not_treated_as_damage(folder: Path) -> None:
    """Otherwise a run would resume from an older checkpoint, and remove the newer one."""
    save(folder, 1, 2)
    manifest = folder / "checkpoint_0000000002" / "manifest-00000.json"
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises(OSError, match=r"^\[Errno 21\] Is a directory"):
        agree_on_checkpoint(folder, ALONE)


def test_worker_without_shards_writes_manifest(folder: Path) -> None:
    """At ZeRO stage 0 only rank 0 writes files; other ranks may finish first."""

    class SilentEngine(FakeEngine):
        def save_checkpoint(self, *_: object, **__: object) -> None:
            pass

    writer = CheckpointWriter(folder, ALONE, 1)
    writer.save(SilentEngine(), make_progress(1))
    writer.finish()
    assert list_steps(folder) == [1]


@pytest.mark.parametrize(
    ("num_kept", "best_step", "kept"),
    [(1, None, [5]), (2, None, [5, 4]), (2, 2, [5, 4, 2]), (2, 5, [5, 4]), (9, 1, [5, 4, 3, 2, 1])],
)
def test_newest_and_best_checkpoints_are_kept(
    folder: Path, num_kept: int, best_step: int | None, kept: list[int]
) -> None:
    save(folder, 1, 2, 3, 4, 5, num_kept=num_kept, best_step=best_step)
    assert list_steps(folder) == kept
    assert len(list_names(folder)) == len(kept)


def test_best_checkpoint_is_kept_until_better_one_is_complete(folder: Path) -> None:
    """Otherwise a run that resumes from the newest checkpoint cannot choose the best at its end."""
    writer = CheckpointWriter(folder, ALONE, 1)
    for step in (1, 2):
        evaluated = {"eval_loss": 0.5, "evaluated_step": 1}
        progress = make_progress(step, best_step=1).model_copy(update=evaluated)
        writer.save(FakeEngine(), progress)
    (folder / "checkpoint_0000000003" / "latest").mkdir(parents=True)  # so that it fails
    writer.save(FakeEngine(), make_progress(3, best_step=3))
    with pytest.raises(OSError, match=f"{NOT_WRITTEN}IsADirectoryError: "):
        writer.finish()
    checkpoints = list_checkpoints(folder)
    assert checkpoints[0].step == 2
    assert choose_result(checkpoints, "best").step == 1


def test_quarantined_checkpoints_are_kept_until_next_one_is_complete(
    run: RunFolder, folder: Path
) -> None:
    save(folder, 1, 2, 9, 10, 11)
    (folder / "checkpoint_0000000002" / "manifest-00000.json").unlink()
    (folder / "checkpoint_0000000010" / "manifest-00000.json").unlink()
    damage(folder / "checkpoint_0000000011" / "latest", "flipped")
    start = find_start(run, ALONE)
    assert start is not None
    assert start.step == 9
    *quarantined, oldest, older, newest = list_names(folder)
    assert [name.rpartition("-")[0] for name in quarantined] == [
        ".quarantined-checkpoint_0000000010",
        ".quarantined-checkpoint_0000000011",
    ]
    assert [oldest, older, newest] == [f"checkpoint_{step:010d}" for step in (1, 2, 9)]
    assert (folder / quarantined[1] / "manifest-00000.json").is_file()
    save(folder, 10)
    assert list_steps(folder) == [10, 9, 1]
    assert len(list_names(folder)) == 4, "the older one may be seen whole again"


@pytest.mark.parametrize("start", [None, 4])
def test_foreign_entries_in_checkpoint_folder_are_kept(
    run: RunFolder, folder: Path, start: int | None
) -> None:
    assert find_start(run, ALONE) is None
    if start is not None:
        save(folder, start)
        shutil.copytree(folder / "checkpoint_0000000004", folder / "checkpoint_backup")
    (folder / "checkpoint_old").mkdir()
    (folder / "checkpoint_0000000009").write_text("a stray file")
    (folder / "checkpoint_0000000009.tar").write_text("a stray file")
    (folder / "unrelated").mkdir()
    before = list_names(folder)
    found = find_start(run, ALONE)
    assert (found and found.step) == start
    assert list_steps(folder) == ([] if start is None else [start])
    assert list_names(folder) == before
    save(folder, 5, num_kept=1)
    foreign = [name for name in before if name != "checkpoint_0000000004"]
    assert list_names(folder) == sorted([*foreign, "checkpoint_0000000005"])


def test_scratch_folder_of_killed_worker_is_removed(folder: Path, local_disk: Path) -> None:
    """Files of killed workers of any run are removed; those of live workers stay."""
    code = (
        "from pathlib import Path; from storage.scratch import ScratchFolder; import sys;"
        "ScratchFolder(Path(sys.argv[1]), 'tuneserve-shards-').path.joinpath('a').touch()"
    )
    subprocess.run([sys.executable, "-c", code, str(local_disk)], check=True)
    (left,) = local_disk.iterdir()
    alive = ScratchFolder(local_disk, "tuneserve-shards-")
    (local_disk / "unrelated").mkdir()
    save(folder, 1)
    assert not left.exists()
    assert alive.path.is_dir()
    alive.remove()
    assert [path.name for path in local_disk.iterdir()] == ["unrelated"]


def test_failed_engine_save_leaves_no_files(folder: Path, local_disk: Path) -> None:
    class BrokenEngine(FakeEngine):
        def save_checkpoint(self, folder: str, tag: str) -> None:
            super().save_checkpoint(folder, tag)
            raise OSError("no space left on device")

    writer = CheckpointWriter(folder, ALONE, 2)
    with pytest.raises(OSError, match="^no space left on device$"):
        writer.save(BrokenEngine(), make_progress(1))
    assert list(local_disk.iterdir()) == []
    assert list(folder.iterdir()) == []


def test_failed_upload_frees_its_disk_space(folder: Path) -> None:
    """On a full disk, files of a failed upload would leave no room for the next one."""
    save(folder, 1)
    (folder / "checkpoint_0000000002" / "latest").mkdir(parents=True)  # so that it fails
    with pytest.raises(OSError, match=f"{NOT_WRITTEN}IsADirectoryError: .*latest"):
        save(folder, 2)
    assert list_names(folder) == ["checkpoint_0000000001"]


def test_failed_upload_is_raised_at_next_save(folder: Path, local_disk: Path) -> None:
    obstacle = folder / "checkpoint_0000000001" / TAG / "mp_rank_00.pt"
    obstacle.mkdir(parents=True)
    writer = CheckpointWriter(folder, ALONE, 2)
    writer.save(FakeEngine(), make_progress(1))
    with pytest.raises(OSError, match=f"{NOT_WRITTEN}.*mp_rank_00.pt"):
        writer.save(FakeEngine(), make_progress(2))
    assert list_checkpoints(folder) == []
    assert list(local_disk.iterdir()) == []
    writer.save(FakeEngine(), make_progress(2))
    writer.finish()
    assert list_steps(folder) == [2]


def test_failed_upload_is_raised_at_finish(folder: Path) -> None:
    (folder / "checkpoint_0000000001" / "latest").mkdir(parents=True)
    writer = CheckpointWriter(folder, ALONE, 2)
    writer.save(FakeEngine(), make_progress(1))
    with pytest.raises(OSError, match=f"{NOT_WRITTEN}IsADirectoryError: .*latest"):
        writer.finish()


def test_find_shards_error_names_invalid_folder(folder: Path) -> None:
    save(folder, 1)
    path = folder / "checkpoint_0000000001"
    assert find_shards(path) == path / TAG
    (path / "latest").write_text("step3\n")
    with pytest.raises(
        CheckpointError, match="^'checkpoint_0000000001' names the shards 'step3': they are gone$"
    ):
        find_shards(path)
    (path / "latest").unlink()
    with pytest.raises(
        CheckpointError,
        match="^'checkpoint_0000000001' is no checkpoint: it has no file 'latest'$",
    ):
        find_shards(path)
