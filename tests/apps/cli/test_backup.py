"""`tuneserve backup` and `restore` on a real storage with concurrent writers."""

import errno
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.cli.backup import INCOMPLETE_STATUS
from apps.cli.main import cli
from apps.evaluations.evaluation_store import ROWS_NAME, EvaluationStore
from apps.file_index import NewFile
from apps.file_store import FileStore
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.queue import RunQueue
from serving.errors import ModelInUseError, ModelNotFoundError
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import UPLOAD_PREFIX, StorageLayout, open_storage
from storage.scratch import build_in_scratch
from storage.snapshots.snapshot_writer import SnapshotWriter
from storage.tombstones import rename_to_tombstone
from tests.apps.conftest import NotedJobs, add_job, create_run
from tests.apps.evaluations.conftest import add_stored
from tests.damage import damage
from tests.waiting import wait_for
from training.checkpoint.format import (
    list_checkpoints,
    name_manifest,
    read_last_complete,
    record_complete,
)
from training.run.folder import RunFolder
from training.run.progress import Progress

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def restored_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def call(command: str, folder: Path, storage: Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [command, str(folder), "--storage", str(storage)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def expect(command: str, folder: Path, storage: Path) -> str:
    status, output = call(command, folder, storage)
    assert status == 0, output
    return output


def add_checkpoint(run: RunFolder, step: int, *, is_complete: bool = True) -> Path:
    """Write a checkpoint of one worker, with its manifest last."""
    path = run.checkpoints / f"checkpoint_{step:010d}"
    (path / "state").mkdir(parents=True)
    (path / "state" / "shard.pt").write_bytes(bytes(range(256)) * step)
    if is_complete:
        progress = Progress(num_shares=1, layout="padded", step=step).model_dump()
        manifest = {"world_size": 1, "progress": progress, "files": {}}
        durable.write_json(name_manifest(path, 0), manifest)
    return path


def list_files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.fixture
async def run(queue: RunQueue, jobs: NotedJobs, file_id: str) -> RunFolder:
    """A running fine-tune with one complete and one incomplete checkpoint."""
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.metrics.add({"step": 5})
    add_checkpoint(run, 5)
    add_checkpoint(run, 6, is_complete=False)
    record_complete(run.checkpoints, 5)
    run.heartbeat_file.write_text("another-machine 1 1")
    return run


async def test_restored_backup_matches_storage_and_its_run_resumes(
    layout: StorageLayout, run: RunFolder, jobs: NotedJobs, tmp_path: Path
) -> None:
    (layout.root / "keys.json").write_text("{}")
    (layout.token_cache / "rows").mkdir(parents=True)
    (layout.models / ".added-1").mkdir()
    files = layout.root / "files"
    await wait_for(lambda: list(files.glob("*/check.json")), 60, "the file is checked")
    expect("backup", tmp_path / "backups", layout.root)
    restored = tmp_path / "restored"
    expect("restore", tmp_path / "backups", restored)

    found, before = list_files(restored), list_files(layout.root)
    skipped = {name for name in before.keys() - found.keys() if not name.startswith("cache/")}
    assert {name.split("/", 2)[-1] for name in skipped} == {
        "heartbeat",
        "ray/checkpoints/checkpoint_0000000006/state/shard.pt",
    }
    assert found == {name: before[name] for name in found}
    copy = open_storage(restored)
    assert not copy.token_cache.exists()
    store = ModelStore(copy)
    store.resolve("latest").verify()
    assert FileStore(copy).get("file-rows")["filename"] == "rows.jsonl"
    ((continued, _),) = RunIndex(copy).scan().runs
    assert [found.step for found in list_checkpoints(continued.checkpoints)] == [5]
    assert read_last_complete(continued.checkpoints) == 5
    cluster = NotedJobs()
    queue = RunQueue(copy, cluster, reserved_cpus=0.5)
    await queue.reconcile()
    await queue.reconcile()
    queue.close()
    assert cluster.started == [run.path.name]


async def test_backup_and_restored_files_are_private(
    layout: StorageLayout, run: RunFolder, tmp_path: Path
) -> None:
    expect("backup", tmp_path / "backups", layout.root)
    os.umask(0o022)
    expect("restore", tmp_path / "backups", tmp_path / "restored")
    for folder in (tmp_path / "backups", tmp_path / "restored"):
        for path in (folder, *folder.rglob("*")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_second_backup_copies_only_changes(layout: StorageLayout, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    expect("backup", backups, layout.root)
    FileStore(layout).add("file-new", b"new", "new.jsonl")
    expect("backup", backups, layout.root)
    first, second = sorted(backups.iterdir())
    inodes = [
        {path.stat().st_ino for path in (snapshot / "content/models").rglob("*") if path.is_file()}
        for snapshot in (first, second)
    ]
    assert inodes[0] == inodes[1]
    expect("restore", first, tmp_path / "old")
    expect("restore", backups, tmp_path / "new")
    assert not (tmp_path / "old/files/file-new").exists()
    assert list_files(tmp_path / "new") == list_files(layout.root)


def test_damaged_backup_is_not_restored(layout: StorageLayout, tmp_path: Path) -> None:
    expect("backup", tmp_path / "backups", layout.root)
    (snapshot,) = (tmp_path / "backups").iterdir()
    weights = snapshot / "content/models/tiny/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)
    status, output = call("restore", snapshot, tmp_path / "restored")
    assert status == 1
    assert "'models/tiny/model.safetensors'" in output
    assert "is damaged" in output
    weights.unlink()
    assert "no file" in call("restore", snapshot, tmp_path / "restored")[1]
    assert not (tmp_path / "restored").exists()
    assert [path.name for path in tmp_path.glob(".restoring-*")] == []


def change_path(manifest: Path) -> None:
    written = json.loads(manifest.read_text())
    written["files"]["../../outside"] = written["files"].pop("aliases.json")
    manifest.write_text(json.dumps(written))


def change_version(manifest: Path) -> None:
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 99}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_path, "outside of a storage"),
        (change_version, "has format 99, expected 1"),
        (Path.unlink, "is no backup"),
        (lambda manifest: manifest.write_text("{"), "cannot be read"),
    ],
)
def test_invalid_manifest_is_refused(
    layout: StorageLayout, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    expect("backup", tmp_path / "backups", layout.root)
    (snapshot,) = (tmp_path / "backups").iterdir()
    change(snapshot / "manifest.json")
    status, output = call("restore", snapshot, tmp_path / "restored")
    assert status == 1
    assert message in output
    assert not (tmp_path / "restored").exists()


async def test_restore_into_storage_in_use_is_refused(
    layout: StorageLayout, queue: RunQueue, tmp_path: Path
) -> None:
    expect("backup", tmp_path / "backups", layout.root)
    before = list_files(layout.root)
    assert "is not empty" in call("restore", tmp_path / "backups", layout.root)[1]
    await queue.reconcile()
    status, output = call("restore", tmp_path / "backups", layout.root)
    assert status == 1
    assert "an application is running" in output
    assert list_files(layout.root) == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_link_or_pipe_in_backup_is_refused(
    layout: StorageLayout, tmp_path: Path, kind: str
) -> None:
    expect("backup", tmp_path / "backups", layout.root)
    (snapshot,) = (tmp_path / "backups").iterdir()
    config = snapshot / "content/models/tiny/config.json"
    config.unlink()
    if kind == "link":
        config.symlink_to(tmp_path / "secret")
        (tmp_path / "secret").write_text("secret")
    else:
        os.mkfifo(config)  # without a writer
    status, output = call("restore", snapshot, tmp_path / "restored")
    assert status == 1
    assert "'config.json' is" in output
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("place", ["models", ".", "backups/daily"])
def test_backup_inside_storage_is_refused(layout: StorageLayout, place: str) -> None:
    before = sorted(layout.root.rglob("*"))
    status, output = call("backup", layout.root / place, layout.root)
    assert status == 1
    assert "choose a folder outside" in output
    assert sorted(layout.root.rglob("*")) == before


def test_backup_of_folder_that_is_no_storage_is_refused(tmp_path: Path) -> None:
    assert "is not a storage root" in call("backup", tmp_path / "backups", tmp_path / "none")[1]


def test_backup_is_consistent_while_models_are_added_and_deleted(
    layout: StorageLayout, tiny_model: Path, tmp_path: Path
) -> None:
    """The alias in every snapshot points to a model in that snapshot, which is undamaged."""
    store = ModelStore(layout)
    has_ended = threading.Event()

    def publish_and_delete() -> None:
        number = 0
        while not has_ended.is_set():
            number += 1
            store.add(tiny_model, f"model-{number}")
            store.point_alias("latest", f"model-{number}")
            with suppress(ModelInUseError, ModelNotFoundError):  # being copied; no model-0 exists
                store.delete(f"model-{number - 1}")

    writer = threading.Thread(target=publish_and_delete)
    writer.start()
    try:
        for _ in range(5):
            expect("backup", tmp_path / "backups", layout.root)
    finally:
        has_ended.set()
        writer.join()
    for snapshot in (tmp_path / "backups").iterdir():
        restored = tmp_path / f"restored-{snapshot.name}"
        expect("restore", snapshot, restored)
        ModelStore(open_storage(restored)).resolve("latest").verify()


def test_backup_succeeds_when_log_is_rotated_during_copy(
    layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.access.audit.write_text("{}\n")
    layout.access.keys.write_text("{}\n")
    copy = SnapshotWriter.add_file

    def rotate_and_copy(writer: SnapshotWriter, path: Path) -> None:
        if path == layout.access.audit:
            path.unlink()
        copy(writer, path)

    monkeypatch.setattr(SnapshotWriter, "add_file", rotate_and_copy)
    expect("backup", tmp_path / "backups", layout.root)
    expect("restore", tmp_path / "backups", tmp_path / "restored")
    assert (tmp_path / "restored" / layout.access.keys.name).is_file()


@contextmanager
def failing_to_list(folder: Path, code: int, before: Callable[[], object] = bool) -> Iterator[None]:
    """Make listing a folder fail with an error code, after a call of `before`."""
    listing = os.scandir

    def list_or_fail(path: Any = ".") -> Any:
        if Path(path) == folder:
            before()
            raise OSError(code, os.strerror(code), str(folder))
        return listing(path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "scandir", list_or_fail)
        yield


def list_content(backups: Path) -> dict[str, set[str]]:
    """Return the files in the newest snapshot, and those that its manifest names."""
    newest = max(backups.iterdir())
    content = newest / "content"
    found = {path.relative_to(content).as_posix() for path in content.rglob("*") if path.is_file()}
    return {
        "found": found,
        "named": set(json.loads((newest / "manifest.json").read_text())["files"]),
    }


@pytest.mark.parametrize("place", ["files", "runs/ftjob-000001/data", "models/tiny"])
def test_backup_succeeds_when_hidden_folder_is_removed_during_copy(
    layout: StorageLayout, tmp_path: Path, place: str
) -> None:
    """Folders of uploads in progress appear and disappear at any time."""
    add_job(layout, "tiny")
    hidden = layout.root / place / ".upload-1"
    (hidden / "content").mkdir(parents=True)
    with failing_to_list(hidden, errno.ENOENT):
        expect("backup", tmp_path / "backups", layout.root)


def test_backup_succeeds_while_uploads_are_added_and_deleted(
    layout: StorageLayout, tmp_path: Path
) -> None:
    store = FileStore(layout)
    record: NewFile = {"filename": "rows.jsonl", "purpose": "fine-tune", "bytes": 4}
    has_ended = threading.Event()

    def upload() -> None:
        while not has_ended.is_set():
            with build_in_scratch(layout.files, UPLOAD_PREFIX) as building:
                (building / "part" / "of" / "it").mkdir(parents=True)
                (building / "rows").write_bytes(b"rows")
                taken = store.add_upload(building / "rows", "data_rows.jsonl", record)
            store.delete(taken["id"])

    writer = threading.Thread(target=upload)
    writer.start()
    try:
        for _ in range(20):
            expect("backup", tmp_path / "backups", layout.root)
            content = list_content(tmp_path / "backups")
            assert content["found"] == content["named"]
            counts = Counter(name.split("/")[1] for name in content["found"] if "/" in name)
            assert [counts[name] for name in counts if name.startswith("file-")] in ([], [2])
    finally:
        has_ended.set()
        writer.join()


def test_run_is_backed_up_when_one_of_its_folders_disappears(
    layout: StorageLayout, tmp_path: Path
) -> None:
    run = add_job(layout, "tiny")
    run.log_file.write_text("log")
    vanishing = run.path / "data" / "old"
    vanishing.mkdir(parents=True)
    with failing_to_list(vanishing, errno.ENOENT, before=vanishing.rmdir):
        expect("backup", tmp_path / "backups", layout.root)
    found = list_content(tmp_path / "backups")["found"]
    assert {
        f"runs/{run.path.name}/{name}" for name in ("run.json", "spec.json", "log.txt")
    } <= found


@pytest.mark.parametrize("kind", ["file", "run"])
def test_entry_deleted_during_copy_is_removed_from_backup(
    layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = add_job(layout, "tiny")
    FileStore(layout).add("file-old", b"rows", "rows.jsonl")
    doomed = run.path if kind == "run" else layout.file("file-old")
    copy = SnapshotWriter.add_file

    def copy_and_delete(writer: SnapshotWriter, path: Path) -> None:
        copy(writer, path)
        if doomed in path.parents:
            rename_to_tombstone(doomed)

    monkeypatch.setattr(SnapshotWriter, "add_file", copy_and_delete)
    output = expect("backup", tmp_path / "backups", layout.root)
    content = list_content(tmp_path / "backups")
    assert content["found"] == content["named"]
    assert not [name for name in content["found"] if doomed.name in name]
    assert "entries omitted because they were deleted meanwhile: 1" in output


@pytest.mark.parametrize("place", ["runs/ftjob-000001/data", "files/file-old", "models/broken"])
def test_unreadable_entry_is_skipped_and_named(
    layout: StorageLayout, tiny_model: Path, tmp_path: Path, place: str
) -> None:
    (add_job(layout, "tiny").path / "data").mkdir(exist_ok=True)
    FileStore(layout).add("file-old", b"rows", "rows.jsonl")
    FileStore(layout).add("file-new", b"rows", "rows.jsonl")
    ModelStore(layout).add(tiny_model, "broken")
    with failing_to_list(layout.root / place, errno.EIO):
        status, output = call("backup", tmp_path / "backups", layout.root)
    entry = "/".join(place.split("/")[:2])
    assert status == INCOMPLETE_STATUS
    assert f"the snapshot does not contain {entry}: " in output
    assert os.strerror(errno.EIO) in output
    content = list_content(tmp_path / "backups")
    assert content["found"] == content["named"]
    assert not [name for name in content["found"] if name.startswith(f"{entry}/")]
    assert {"files/file-new/file.json", "models/tiny/config.json"} <= content["found"]
    assert f"does not contain {entry}" in expect(
        "restore", tmp_path / "backups", tmp_path / "restored"
    )


def test_run_with_unreadable_record_is_skipped_and_named(
    layout: StorageLayout, tmp_path: Path
) -> None:
    run = add_job(layout, "tiny")
    run.record_file.unlink()
    run.record_file.symlink_to(run.record_file)  # opening it fails, as on a faulty disk
    status, output = call("backup", tmp_path / "backups", layout.root)
    assert status == INCOMPLETE_STATUS
    assert f"the snapshot does not contain runs/{run.path.name}: " in output


def test_write_error_fails_backup(
    layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SnapshotWriter, "add_file", fail)
    status, output = call("backup", tmp_path / "backups", layout.root)
    assert status == 1
    assert os.strerror(errno.ENOSPC) in output
    assert list((tmp_path / "backups").iterdir()) == []


@pytest.mark.parametrize("change", [change_version, lambda manifest: manifest.write_text("{")])
def test_unreadable_snapshot_is_skipped_by_backup_and_restore(
    layout: StorageLayout,
    tmp_path: Path,
    change: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    backups = tmp_path / "backups"
    for _ in range(3):
        expect("backup", backups, layout.root)
    oldest, readable, newest = sorted(backups.iterdir())
    for snapshot in (oldest, newest):
        change(snapshot / "manifest.json")
    (backups / "lost+found").mkdir()
    (backups / "lost+found" / "manifest.json").write_text("{")
    caplog.clear()
    assert str(readable) in expect("restore", backups, tmp_path / "restored")
    assert str(newest) in caplog.text
    assert str(oldest) not in caplog.text, "a snapshot older than the restored one was opened"
    assert "lost+found" not in caplog.text
    assert "unchanged since the last" in expect("backup", backups, layout.root)


def test_empty_target_folder_is_filled_and_not_replaced(
    layout: StorageLayout, tmp_path: Path
) -> None:
    """It may be a mount point, which cannot be replaced, or its parent may not be writable."""
    expect("backup", tmp_path / "backups", layout.root)
    root = tmp_path / "mount"
    (root / "lost+found").mkdir(parents=True)
    inode = root.stat().st_ino
    siblings = sorted(tmp_path.iterdir())
    expect("restore", tmp_path / "backups", root)
    assert root.stat().st_ino == inode
    assert list_files(root) == list_files(layout.root)
    assert not [path for path in root.iterdir() if path.name.startswith(".")]
    assert sorted(tmp_path.iterdir()) == siblings


def test_refused_restore_leaves_empty_target_folder_empty(
    layout: StorageLayout, tmp_path: Path
) -> None:
    expect("backup", tmp_path / "backups", layout.root)
    (snapshot,) = (tmp_path / "backups").iterdir()
    damage(snapshot / "content/models/tiny/config.json", "flipped")
    root = tmp_path / "root"
    root.mkdir()
    assert call("restore", snapshot, root)[0] == 1
    assert list(root.iterdir()) == []


def test_restore_warns_that_revoked_keys_are_valid_again(
    layout: StorageLayout, tmp_path: Path
) -> None:
    keys = KeyStore(layout)
    key = keys.create("ann", Role.READ).text
    expect("backup", tmp_path / "backups", layout.root)
    keys.revoke("ann")
    output = expect("restore", tmp_path / "backups", tmp_path / "restored")
    assert "keys that were revoked or rotated since then are valid again" in output
    restored = KeyStore(open_storage(tmp_path / "restored"))
    record = restored.find(key)
    assert record is not None
    assert record.revoked_at is None
    assert (tmp_path / "restored" / layout.access.keys_marker.name).is_file()


def test_alias_file_and_its_copy_are_backed_up_consistently(
    layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(layout)
    store.point_alias("latest", "tiny")
    copy = SnapshotWriter.add_tree

    def move_and_copy(writer: SnapshotWriter, folder: Path) -> None:
        store.point_alias("later", "tiny")
        copy(writer, folder)

    monkeypatch.setattr(SnapshotWriter, "add_tree", move_and_copy)
    expect("backup", tmp_path / "backups", layout.root)
    restored = tmp_path / "restored"
    expect("restore", tmp_path / "backups", restored)
    names = ("aliases.json", "aliases.copy.json")
    first, second = ((restored / name).read_bytes() for name in names)
    assert first == second


def test_running_evaluation_is_restored_with_the_rows_that_it_counts(
    layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is that of before its rows were copied, so no row that it counts is missing."""
    add_stored(layout, "eval-1", status="running", num_done=1)
    store = EvaluationStore(layout)
    rows = layout.evaluations.find("eval-1") / ROWS_NAME
    copy = SnapshotWriter.add_file

    def copy_and_end(writer: SnapshotWriter, path: Path) -> None:
        copy(writer, path)
        if path == rows:
            record = store.get("eval-1")
            store.replace(record.model_copy(update={"status": "succeeded", "num_done": 2}))

    monkeypatch.setattr(SnapshotWriter, "add_file", copy_and_end)
    expect("backup", tmp_path / "backups", layout.root)
    expect("restore", tmp_path / "backups", tmp_path / "restored")
    restored = EvaluationStore(open_storage(tmp_path / "restored"))
    record = restored.get("eval-1")
    assert (record.status, record.num_done) == ("running", 1)
    assert [row.id for row in restored.iterate_rows("eval-1")] == ["row-1"]
