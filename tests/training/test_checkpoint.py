import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from storage.scratch import ScratchFolder
from tests.damage import damage
from training.checkpoint import (
    TAG,
    Checkpoint,
    CheckpointError,
    choose_result,
    find_damage,
    find_shards,
    list_checkpoints,
    read_checkpoint,
    remove_leftovers,
)
from training.checkpoint_writer import CheckpointWriter, agree_on_checkpoint
from training.engine import Place
from training.progress import Progress

ALONE = Place(0, 1, torch.device("cpu"))


class FakeEngine:
    """Writes files such as DeepSpeed's: shards of every rank, and `latest` of the first."""

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
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def make_progress(step: int, best_step: int | None = None) -> Progress:
    return Progress(step=step, num_shares=1, best_step=best_step, epoch_loss_sum=0.1 + step)


def save(folder: Path, *steps: int, num_kept: int = 9, best_step: int | None = None) -> None:
    writer = CheckpointWriter(folder, ALONE, num_kept)
    for step in steps:
        writer.save(FakeEngine(), make_progress(step, best_step))
    writer.finish()


def save_as_two_workers(folder: Path, step: int) -> Checkpoint:
    """Save as rank 0 and rank 1 do, short of the collective that a later save begins with."""
    writers = [CheckpointWriter(folder, Place(rank, 2, ALONE.device), 9) for rank in range(2)]
    for rank, writer in enumerate(writers):
        writer.save(FakeEngine(rank), make_progress(step))
    deadline = time.monotonic() + 10
    while not (found := list_checkpoints(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found[0]


def list_steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(folder)]


def test_a_checkpoint_is_complete_once_it_is_finished(folder: Path, local_disk: Path) -> None:
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


def test_saving_waits_for_the_checkpoint_before(folder: Path) -> None:
    writer = CheckpointWriter(folder, ALONE, 2)
    writer.save(FakeEngine(), make_progress(1))
    writer.save(FakeEngine(), make_progress(2))
    assert 1 in list_steps(folder)
    writer.finish()
    writer.finish()
    assert list_steps(folder) == [2, 1]


def test_checkpoints_are_listed_newest_first(folder: Path) -> None:
    save(folder, 9, 10, 100, 99)
    assert list_steps(folder) == [100, 99, 10, 9]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_incomplete_checkpoint_does_not_exist(folder: Path, rank: int) -> None:
    checkpoint = save_as_two_workers(folder, 4)
    assert (checkpoint.world_size, checkpoint.step) == (2, 4)
    (checkpoint.path / f"manifest-0000{rank}.json").unlink()
    assert list_checkpoints(folder) == []
    assert agree_on_checkpoint(folder, ALONE) is None


@pytest.mark.parametrize(
    "damage", ["manifest", "no progress", "short file", "long file", "missing file", "no shards"]
)
def test_a_damaged_checkpoint_is_never_taken_for_none(folder: Path, damage: str) -> None:
    """As after a copy that broke off: a run that began anew would remove what can be restored."""
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
    with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged; nothing was removed"):
        agree_on_checkpoint(folder, ALONE)
    assert checkpoint.path.is_dir()


def test_every_worker_hashes_its_share_of_the_files(folder: Path) -> None:
    checkpoint = save_as_two_workers(folder, 4)
    damage(checkpoint.path / TAG / "zero_pp_rank_1.pt", "flipped")
    assert list_steps(folder) == [4]
    said = f"{TAG}/zero_pp_rank_1.pt differs from what was written"
    assert find_damage(checkpoint, 0, 1) == said
    assert [find_damage(checkpoint, rank, 2) for rank in range(2)] == [None, said]
    assert [find_damage(checkpoint, rank, 3) for rank in range(3)] == [None, said, None]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
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
        f"checkpoint of step 3 is damaged: {TAG}/mp_rank_00.pt differs from what was written",
        "checkpoint of step 2 is damaged: latest differs from what was written",
    ]


def test_a_run_without_a_whole_checkpoint_starts_at_its_beginning(folder: Path) -> None:
    assert agree_on_checkpoint(folder, ALONE) is None
    save(folder, 1)
    (folder / "checkpoint_0000000001" / "manifest-00000.json").unlink()
    assert agree_on_checkpoint(folder, ALONE) is None


def test_a_run_of_which_every_checkpoint_is_damaged_is_not_begun_anew(folder: Path) -> None:
    save(folder, 1)
    damage(folder / "checkpoint_0000000001" / "latest", "flipped")
    with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged; nothing was removed"):
        agree_on_checkpoint(folder, ALONE)
    assert list_steps(folder) == [1]


def test_a_damaged_manifest_is_passed_over(folder: Path) -> None:
    save(folder, 1, 2)
    (folder / "checkpoint_0000000002" / "manifest-00000.json").write_text("{")
    assert list_steps(folder) == [1]


def change_manifest(folder: Path, step: int, **changes: object) -> str:
    path = folder / f"checkpoint_{step:010d}" / "manifest-00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path.read_text()


def test_a_manifest_says_its_format_and_one_of_a_newer_minor_version_is_read(folder: Path) -> None:
    save(folder, 1)
    path = folder / "checkpoint_0000000001" / "manifest-00000.json"
    assert json.loads(path.read_text())["format_version"] == "1.0"
    change_manifest(folder, 1, format_version="1.7", signed_by="ann")
    checkpoint = agree_on_checkpoint(folder, ALONE)
    assert checkpoint is not None
    assert checkpoint.step == 1


def test_a_checkpoint_of_a_newer_release_stops_the_run_and_nothing_is_removed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1, 2)
    written = change_manifest(folder, 2, format_version="2.0")
    assert list_steps(folder) == [1]
    with pytest.raises(CheckpointError, match="Start the newer release again") as caught:
        agree_on_checkpoint(folder, ALONE)
    assert "'checkpoint_0000000002' needs a newer version of Tuneserve" in str(caught.value)
    assert "its format is 2.0, and this version writes" in str(caught.value)
    with pytest.raises(CheckpointError, match="nothing was removed"):
        remove_leftovers(folder, list_checkpoints(folder)[0])
    assert not any("damaged" in message for message in [*caplog.messages, str(caught.value)])
    manifest = folder / "checkpoint_0000000002" / "manifest-00000.json"
    assert manifest.read_text() == written
    with pytest.raises(CheckpointError, match="its format is 2.0"):
        read_checkpoint(manifest.parent)


def test_a_fault_of_the_disk_is_not_taken_for_damage(folder: Path) -> None:
    """Else a run would go on from an older checkpoint, and remove the newer one."""
    save(folder, 1, 2)
    manifest = folder / "checkpoint_0000000002" / "manifest-00000.json"
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        agree_on_checkpoint(folder, ALONE)


def test_a_worker_without_files_of_its_own_has_a_manifest(folder: Path) -> None:
    """Below stage 1 only rank 0 writes; the others may well be first."""

    class Silent(FakeEngine):
        def save_checkpoint(self, *_: object, **__: object) -> None:
            pass

    writer = CheckpointWriter(folder, ALONE, 1)
    writer.save(Silent(), make_progress(1))
    writer.finish()
    assert list_steps(folder) == [1]


@pytest.mark.parametrize(
    ("num_kept", "best_step", "kept"),
    [(1, None, [5]), (2, None, [5, 4]), (2, 2, [5, 4, 2]), (2, 5, [5, 4]), (9, 1, [5, 4, 3, 2, 1])],
)
def test_the_newest_and_the_best_stay_on_disk(
    folder: Path, num_kept: int, best_step: int | None, kept: list[int]
) -> None:
    save(folder, 1, 2, 3, 4, 5, num_kept=num_kept, best_step=best_step)
    assert list_steps(folder) == kept
    assert len(list(folder.iterdir())) == len(kept)


def test_the_best_so_far_stays_until_a_better_one_is_complete(folder: Path) -> None:
    """Else a run that goes on from the newest of them has no best one to choose at its end."""
    writer = CheckpointWriter(folder, ALONE, 1)
    for step in (1, 2):
        evaluated = {"eval_loss": 0.5, "evaluated_step": 1}
        progress = make_progress(step, best_step=1).model_copy(update=evaluated)
        writer.save(FakeEngine(), progress)
    (folder / "checkpoint_0000000003" / "latest").mkdir(parents=True)  # so that it fails
    writer.save(FakeEngine(), make_progress(3, best_step=3))
    with pytest.raises(OSError, match="worker 0: IsADirectoryError"):
        writer.finish()
    checkpoints = list_checkpoints(folder)
    assert checkpoints[0].step == 2
    assert choose_result(checkpoints, "best").step == 1


def test_what_is_newer_or_incomplete_is_removed_when_a_run_goes_on(folder: Path) -> None:
    save(folder, 1, 2, 9, 10)
    (folder / "checkpoint_0000000002" / "manifest-00000.json").unlink()
    (folder / "unrelated").mkdir()
    newest = next(found for found in list_checkpoints(folder) if found.step == 9)
    remove_leftovers(folder, newest)
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint_0000000001",
        "checkpoint_0000000009",
        "unrelated",
    ]
    remove_leftovers(folder, None)
    assert [path.name for path in folder.iterdir()] == ["unrelated"]


def test_what_a_killed_worker_left_on_local_disk_is_removed(folder: Path, local_disk: Path) -> None:
    """Of whatever run it was; what a living one has there stays."""
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


def test_an_engine_that_fails_leaves_nothing_behind(folder: Path, local_disk: Path) -> None:
    class BrokenEngine(FakeEngine):
        def save_checkpoint(self, folder: str, tag: str) -> None:
            super().save_checkpoint(folder, tag)
            raise OSError("no space left on device")

    writer = CheckpointWriter(folder, ALONE, 2)
    with pytest.raises(OSError, match="no space left"):
        writer.save(BrokenEngine(), make_progress(1))
    assert list(local_disk.iterdir()) == []
    assert list(folder.iterdir()) == []


def test_an_upload_that_failed_is_told_at_the_next_save(folder: Path, local_disk: Path) -> None:
    in_the_way = folder / "checkpoint_0000000001" / TAG / "mp_rank_00.pt"
    in_the_way.mkdir(parents=True)
    writer = CheckpointWriter(folder, ALONE, 2)
    writer.save(FakeEngine(), make_progress(1))
    with pytest.raises(OSError, match="mp_rank_00.pt"):
        writer.save(FakeEngine(), make_progress(2))
    assert list_checkpoints(folder) == []
    assert list(local_disk.iterdir()) == []
    writer.save(FakeEngine(), make_progress(2))
    writer.finish()
    assert list_steps(folder) == [2]


def test_an_upload_that_failed_is_told_at_the_end(folder: Path) -> None:
    (folder / "checkpoint_0000000001" / "latest").mkdir(parents=True)
    writer = CheckpointWriter(folder, ALONE, 2)
    writer.save(FakeEngine(), make_progress(1))
    with pytest.raises(OSError, match="latest"):
        writer.finish()


def test_a_folder_that_is_no_checkpoint_is_named(folder: Path) -> None:
    save(folder, 1)
    path = folder / "checkpoint_0000000001"
    assert find_shards(path) == path / TAG
    (path / "latest").write_text("step3\n")
    with pytest.raises(CheckpointError, match="'checkpoint_0000000001' names the shards 'step3'"):
        find_shards(path)
    (path / "latest").unlink()
    with pytest.raises(CheckpointError, match="is no checkpoint: it has no file 'latest'"):
        find_shards(path)
