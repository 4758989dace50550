"""Snapshots of a storage root: creation and restore.

A snapshot is built in a scratch folder and renamed when it is complete, so an interrupted one does
not exist. A file that is unchanged since the previous snapshot is a hard link to its copy there.
"""

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from storage import durable
from storage.layout import StorageLayout
from storage.locks import LockedError, lock_existing
from storage.regular_file import open_regular
from storage.scratch import build_in_scratch
from storage.snapshots.snapshot import (
    BackupError,
    Snapshot,
    find_newest_snapshot,
    make_snapshot_name,
)
from storage.snapshots.snapshot_writer import OnBytes, SnapshotWriter

_CHUNK_BYTES = 1 << 20
_BUILDING_PREFIX = ".backup-"
_RESTORING_PREFIX = ".restoring-"
_NO_CONTENT = ("lost+found", _RESTORING_PREFIX, f".new-{_RESTORING_PREFIX}")
"""Name prefixes ignored in an empty root: of the file system itself, and of killed restores."""


def take_snapshot(
    root: Path, folder: Path, copy: Callable[[SnapshotWriter], None], on_bytes: OnBytes
) -> Snapshot:
    """Make a snapshot of a storage root in `folder`; `copy` writes its files.

    Raises `BackupError`, before anything is written, if the folder is inside the storage root or
    the storage root is inside the folder.
    """
    folder = folder.resolve()
    if folder.is_relative_to(root) or root.is_relative_to(folder):
        raise BackupError(
            f"the backup folder {str(folder)!r} and the storage root {str(root)!r} contain one "
            "another; choose a folder outside, best on another disk"
        )
    folder.mkdir(parents=True, exist_ok=True)
    previous = find_newest_snapshot(folder)
    with build_in_scratch(folder, _BUILDING_PREFIX) as building:
        writer = SnapshotWriter(root, building, previous, on_bytes)
        copy(writer)
        manifest = writer.write_manifest(building)
        final = folder / make_snapshot_name()
        durable.move_directory(building, final)
    return Snapshot(final, manifest, writer.num_reused)


def restore_snapshot(snapshot: Snapshot, root: Path, on_bytes: OnBytes) -> None:
    """Copy a snapshot to a new storage root, and compare every file with the manifest.

    The content becomes visible once all files are verified. It is built beside the root if the root
    does not exist, or inside the root if that is an empty folder, which may be a mount point.
    Raises `BackupError` for a root that is not empty and for a file that is missing or differs, and
    `OSError`, before anything is copied, if the root cannot be written.
    """
    check_restorable(root)
    if root.exists():
        with build_in_scratch(root, _RESTORING_PREFIX) as building:
            _copy_verified(snapshot, building, on_bytes)
            check_restorable(root)  # an application may have been started on the root meanwhile
            for path in sorted(building.iterdir()):
                path.rename(root / path.name)
            durable.fsync_directory(root)
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    with build_in_scratch(root.parent, f"{_RESTORING_PREFIX}{root.name}-") as building:
        _copy_verified(snapshot, building, on_bytes)
        durable.move_directory(building, root)


def _copy_verified(snapshot: Snapshot, building: Path, on_bytes: OnBytes) -> None:
    """Copy all files of a snapshot durably; raise `BackupError` for a file that differs."""
    done = 0
    for name, expected in snapshot.manifest.files.items():
        target = building / name
        target.parent.mkdir(parents=True, exist_ok=True)
        found = _copy(snapshot.find_content(name), target)
        if found != (expected.size_bytes, expected.sha256):
            raise BackupError(
                f"{name!r} in backup {str(snapshot.path)!r} is damaged: expected "
                f"{expected.size_bytes} bytes with SHA-256 {expected.sha256}, found "
                f"{found[0]} bytes with {found[1]}; use another backup"
            )
        done += expected.size_bytes
        on_bytes(done, snapshot.size_bytes)
    for path in sorted(building.rglob("*")):
        (durable.fsync_directory if path.is_dir() else durable.fsync_file)(path)


def check_restorable(root: Path) -> None:
    """Raise `BackupError` if a storage root exists and is not an empty folder, or is in use."""
    try:
        with lock_existing(StorageLayout(root).queue_lock):
            pass
    except FileNotFoundError:
        pass
    except LockedError:
        raise BackupError(
            f"an application is running on {str(root)!r}; stop it, or name another root with "
            "--storage"
        ) from None
    if root.exists() and (not root.is_dir() or _has_content(root)):
        raise BackupError(
            f"{str(root)!r} is not empty; a backup is restored to a new storage root only. Stop "
            "the application and move that folder away, or name another one with --storage"
        )


def _has_content(root: Path) -> bool:
    return any(not path.name.startswith(_NO_CONTENT) for path in root.iterdir())


def _open_regular(path: Path) -> IO[bytes]:
    """Open a regular file; raises `BackupError` for anything else."""
    try:
        return open_regular(path, follow_links=False)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise BackupError(f"{path.name!r} is a link; expected a file") from exc
        if exc.errno in (errno.EINVAL, errno.EISDIR):
            raise BackupError(f"{path.name!r} is not a regular file") from exc
        raise


def _copy(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file; return its size and SHA-256, or `(0, "no file")` if it does not exist."""
    digest = hashlib.sha256()
    size = 0
    try:
        with _open_regular(source) as reader, target.open("wb") as writer:
            while chunk := reader.read(_CHUNK_BYTES):
                writer.write(chunk)
                digest.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return 0, "no file"
    return size, digest.hexdigest()
