"""Snapshots of a storage root: copies of files with a manifest of their hashes.

<folder>/<time>/manifest.json   format, time, storage root, and size and SHA-256 of each file
<folder>/<time>/content/        the files, by their paths below the storage root

A snapshot is built in a scratch folder and renamed when it is complete, so one that was interrupted
does not exist. A file that the previous snapshot has too, unchanged, is a hard link to that one.
"""

import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field

from storage import durable
from storage.layout import StorageLayout
from storage.locks import HeldError, hold_alone
from storage.scratch import build_in_scratch

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
_CONTENT_NAME = "content"
_CHUNK_BYTES = 1 << 20
_BUILDING_PREFIX = ".backup-"
_RESTORING_PREFIX = ".restoring-"

OnBytes = Callable[[int, int], None]
"""Called with the bytes done and their expected number."""


class BackupError(ValueError):
    """A snapshot cannot be made or restored; the message says why."""


class BackedUpFile(BaseModel):
    """One file of a snapshot."""

    model_config = ConfigDict(frozen=True)

    size_bytes: int
    sha256: str
    source: tuple[int, int, int] = Field(
        description="Inode, modification time in ns and size when it was copied; a file in which "
        "these are the same is taken as unchanged."
    )


class Manifest(BaseModel):
    """What a snapshot consists of."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    created_at: int = Field(description="Unix seconds.")
    storage: str = Field(description="The storage root that was copied.")
    files: dict[str, BackedUpFile] = Field(description="By path, relative to the root.")


@dataclass(frozen=True)
class Snapshot:
    """One complete snapshot."""

    path: Path
    manifest: Manifest
    num_reused: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size_bytes for file in self.manifest.files.values())

    def find_content(self, name: str) -> Path:
        """The path of one file's copy."""
        return self.path / _CONTENT_NAME / name


class SnapshotWriter:
    """Copies files into a snapshot under construction."""

    def __init__(
        self, root: Path, building: Path, previous: Snapshot | None, on_bytes: OnBytes
    ) -> None:
        self._root = root
        self._content = building / _CONTENT_NAME
        self._previous = previous
        self._on_bytes = on_bytes
        self._files: dict[str, BackedUpFile] = {}
        self._done_bytes = 0
        self._total_bytes = 0
        self.num_reused = 0
        self._content.mkdir()

    def announce(self, size_bytes: int) -> None:
        """Add to the number of bytes that are expected."""
        self._total_bytes += size_bytes
        self._on_bytes(self._done_bytes, self._total_bytes)

    def add_bytes(self, path: Path, content: bytes) -> None:
        """Add a file of the storage root with content that was read before."""
        target = self._make_target(path)
        target.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self._note(path, BackedUpFile(size_bytes=len(content), sha256=sha256, source=(0, 0, 0)))

    def add_file(self, path: Path) -> None:
        """Copy a file of the storage root, as long as it is now; it may grow meanwhile.

        Raises `FileNotFoundError` if it is gone.
        """
        with path.open("rb") as reader:
            found = os.fstat(reader.fileno())
            source = found.st_ino, found.st_mtime_ns, found.st_size
            target = self._make_target(path)
            if not self._link_unchanged(path, target, source):
                digest = hashlib.sha256()
                left = found.st_size
                with target.open("wb") as writer:
                    while left and (chunk := reader.read(min(left, _CHUNK_BYTES))):
                        writer.write(chunk)
                        digest.update(chunk)
                        left -= len(chunk)
                        self._progress(len(chunk))
                copied = BackedUpFile(
                    size_bytes=found.st_size - left, sha256=digest.hexdigest(), source=source
                )
                self._note(path, copied)

    def add_tree(self, folder: Path) -> None:
        """Copy every file below a folder, but for hidden ones, links and what goes meanwhile."""
        for path in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.is_file() and not path.is_symlink() and not hidden:
                try:
                    self.add_file(path)
                except FileNotFoundError:
                    self.drop(path)

    def drop(self, path: Path) -> None:
        """Forget a file or folder that was removed from the storage while it was copied."""
        name = self._name(path)
        for known in [key for key in self._files if key == name or key.startswith(f"{name}/")]:
            del self._files[known]
        target = self._content / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def write_manifest(self, building: Path) -> Manifest:
        """Write what was copied, once everything has been."""
        manifest = Manifest(
            created_at=int(time.time()), storage=str(self._root), files=dict(self._files)
        )
        for path in sorted(building.rglob("*")):
            (durable.fsync_directory if path.is_dir() else durable.fsync_file)(path)
        durable.write_json(building / MANIFEST_NAME, manifest.model_dump())
        return manifest

    def _link_unchanged(self, path: Path, target: Path, source: tuple[int, int, int]) -> bool:
        if self._previous is None:
            return False
        name = self._name(path)
        known = self._previous.manifest.files.get(name)
        if known is None or known.source != source:
            return False
        try:
            os.link(self._previous.find_content(name), target)
        except OSError:  # another file system, or one without links: copied
            return False
        self.num_reused += 1
        self._note(path, known)
        self._progress(known.size_bytes)
        return True

    def _make_target(self, path: Path) -> Path:
        target = self._content / self._name(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _note(self, path: Path, file: BackedUpFile) -> None:
        self._files[self._name(path)] = file

    def _progress(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._on_bytes(self._done_bytes, max(self._done_bytes, self._total_bytes))


def take_snapshot(
    root: Path, folder: Path, copy: Callable[[SnapshotWriter], None], on_bytes: OnBytes
) -> Snapshot:
    """Make a snapshot of a storage root below `folder`; `copy` says of which files.

    Raises `BackupError` for a folder inside the storage root, or the other way round.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if folder.is_relative_to(root) or root.is_relative_to(folder):
        raise BackupError(
            f"the backup folder {str(folder)!r} and the storage root {str(root)!r} contain one "
            "another; choose a folder outside, best on another disk"
        )
    previous = next(iter(list_snapshots(folder)), None)
    with build_in_scratch(folder, _BUILDING_PREFIX) as building:
        writer = SnapshotWriter(root, building, previous, on_bytes)
        copy(writer)
        manifest = writer.write_manifest(building)
        final = folder / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        durable.move_directory(building, final)
    return Snapshot(final, manifest, writer.num_reused)


def list_snapshots(folder: Path) -> list[Snapshot]:
    """List the complete snapshots below a folder, newest first."""
    found = [path for path in folder.iterdir() if path.name[0] != "."]
    named = sorted(found, key=lambda path: path.name, reverse=True)
    return [open_snapshot(path) for path in named if (path / MANIFEST_NAME).is_file()]


def open_snapshot(path: Path) -> Snapshot:
    """Read the manifest of a snapshot; of a folder of snapshots, that of the newest one.

    Raises `BackupError` if there is none, or of a later version than this.
    """
    if not (path / MANIFEST_NAME).is_file():
        snapshots = list_snapshots(path) if path.is_dir() else []
        if not snapshots:
            raise BackupError(f"{str(path)!r} is no backup: it has no {MANIFEST_NAME}")
        return snapshots[0]
    try:
        written: dict[str, Any] = durable.read_json(path / MANIFEST_NAME)
        version = written["format_version"]
        manifest = Manifest.model_validate(written)
    except (ValueError, KeyError, TypeError) as exc:
        raise BackupError(f"{str(path / MANIFEST_NAME)!r} cannot be read: {exc}") from exc
    if version != FORMAT_VERSION:
        raise BackupError(
            f"{str(path)!r} has format {version}, expected {FORMAT_VERSION}; restore it with the "
            "version of Tuneserve that made it"
        )
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise BackupError(f"the manifest of {str(path)!r} names {name!r}, outside of a storage")
    return Snapshot(path, manifest)


def restore_snapshot(snapshot: Snapshot, root: Path, on_bytes: OnBytes) -> None:
    """Copy a snapshot to a new storage root, and compare every file with the manifest.

    The root appears when everything is there. Raises `BackupError` for a root that is not empty,
    and for a file that is missing or differs.
    """
    check_restorable(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with build_in_scratch(root.parent, f"{_RESTORING_PREFIX}{root.name}-") as building:
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
        if root.exists():
            root.rmdir()  # empty, as was checked
        building.rename(root)
        durable.fsync_directory(root.parent)


def check_restorable(root: Path) -> None:
    """Raise `BackupError` unless a storage root does not exist or is an empty folder."""
    try:
        with hold_alone(StorageLayout(root).queue_lock):
            pass
    except FileNotFoundError:
        pass
    except HeldError:
        raise BackupError(
            f"an application is running on {str(root)!r}; stop it, or name another root with "
            "--storage"
        ) from None
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BackupError(
            f"{str(root)!r} is not empty; a backup is restored to a new storage root only. Stop "
            "the application and move that folder away, or name another one with --storage"
        )


def _open_regular(path: Path) -> IO[bytes]:
    """Open a regular file; raises `BackupError` for a link, a device or a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise BackupError(f"{path.name!r} is a link; expected a file") from exc
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackupError(f"{path.name!r} is no regular file")
    return os.fdopen(descriptor, "rb")


def _copy(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file; returns its size and SHA-256, of nothing if it is gone."""
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
