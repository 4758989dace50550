"""Copies files of a storage root into a snapshot while other processes may write to the root."""

import errno
import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from storage import durable
from storage.regular_file import open_regular
from storage.snapshots.snapshot import (
    CONTENT_NAME,
    MANIFEST_NAME,
    BackedUpFile,
    BackupError,
    LeftOut,
    Manifest,
    Snapshot,
)

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})

OnBytes = Callable[[int, int], None]
"""Progress callback with the number of copied bytes and the expected total."""


class EntryGoneError(BackupError):
    """A file or folder of the storage was deleted while it was copied."""


class EntryUnreadableError(BackupError):
    """A file or folder of the storage cannot be read; the message has its path and the reason."""


class SnapshotWriter:
    """Copies files into a snapshot under construction.

    Raises `EntryUnreadableError` for a fault of the storage, and `OSError` for one of the snapshot.
    """

    def __init__(
        self, root: Path, building: Path, previous: Snapshot | None, on_bytes: OnBytes
    ) -> None:
        self._root = root
        self._content = building / CONTENT_NAME
        self._previous = previous
        self._on_bytes = on_bytes
        self._files: dict[str, BackedUpFile] = {}
        self._left_out: list[LeftOut] = []
        self._done_bytes = 0
        self._total_bytes = 0
        self.num_reused = 0
        self._content.mkdir()

    def add_expected_bytes(self, size_bytes: int) -> None:
        """Increase the expected number of bytes."""
        self._total_bytes += size_bytes
        self._on_bytes(self._done_bytes, self._total_bytes)

    def add_bytes(self, path: Path, content: bytes) -> None:
        """Add a file of the storage root with content that the caller has read."""
        target = self._make_target(path)
        target.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self._record(path, BackedUpFile(size_bytes=len(content), sha256=sha256, source=(0, 0, 0)))

    def add_file(self, path: Path) -> None:
        """Copy a file of the storage root up to its current size; it may grow meanwhile.

        Raises `EntryGoneError` or `EntryUnreadableError`; then no partial copy is left.
        """
        with reading(path):
            reader = open_regular(path)
        with reader:
            found = os.fstat(reader.fileno())
            source = found.st_ino, found.st_mtime_ns, found.st_size
            target = self._make_target(path)
            if self._link_unchanged(path, target, source):
                return
            try:
                copied = self._copy(path, reader, target, source)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            self._record(path, copied)

    def add_tree(self, folder: Path) -> None:
        """Copy every file below a folder except hidden files, links and files deleted meanwhile.

        Raises `EntryUnreadableError`.
        """
        with reading(folder):
            paths = sorted(find_files(folder))
        for path in paths:
            try:
                self.add_file(path)
            except EntryGoneError:
                logger.info("%s was deleted while its folder was copied", path)

    def drop(self, path: Path) -> None:
        """Remove a file or folder from the snapshot."""
        name = self._name(path)
        for known in [key for key in self._files if key == name or key.startswith(f"{name}/")]:
            del self._files[known]
        target = self._content / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def leave_out(
        self, path: Path, reason: Literal["deleted", "unreadable"], detail: str = ""
    ) -> None:
        """Drop an entry of the storage and list it in the manifest as left out."""
        self.drop(path)
        self._left_out.append(LeftOut(path=self._name(path), reason=reason, detail=detail))
        level = logging.WARNING if reason == "unreadable" else logging.INFO
        logger.log(level, "the backup does not have %s (%s): %s", path, reason, detail)

    def write_manifest(self, building: Path) -> Manifest:
        """Fsync all copied files and write the manifest; call it after everything is copied."""
        manifest = Manifest(
            created_at=int(time.time()),
            storage=str(self._root),
            files=dict(self._files),
            left_out=tuple(self._left_out),
        )
        for path in sorted(building.rglob("*")):
            (durable.fsync_directory if path.is_dir() else durable.fsync_file)(path)
        durable.write_json(building / MANIFEST_NAME, manifest.model_dump())
        return manifest

    def _copy(
        self, path: Path, reader: IO[bytes], target: Path, source: tuple[int, int, int]
    ) -> BackedUpFile:
        digest = hashlib.sha256()
        left = source[2]
        with target.open("wb") as writer:
            while left:
                with reading(path):
                    chunk = reader.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    break
                writer.write(chunk)
                digest.update(chunk)
                left -= len(chunk)
                self._progress(len(chunk))
        return BackedUpFile(size_bytes=source[2] - left, sha256=digest.hexdigest(), source=source)

    def _link_unchanged(self, path: Path, target: Path, source: tuple[int, int, int]) -> bool:
        if self._previous is None:
            return False
        name = self._name(path)
        known = self._previous.manifest.files.get(name)
        if known is None or known.source != source:
            return False
        try:
            os.link(self._previous.find_content(name), target)
        except OSError:  # another file system, or one without hard links: copy instead
            return False
        self.num_reused += 1
        self._record(path, known)
        self._progress(known.size_bytes)
        return True

    def _make_target(self, path: Path) -> Path:
        target = self._content / self._name(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _record(self, path: Path, file: BackedUpFile) -> None:
        self._files[self._name(path)] = file

    def _progress(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._on_bytes(self._done_bytes, max(self._done_bytes, self._total_bytes))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate an `OSError` of the body, which reads the storage, to an error about a path.

    Raises `EntryGoneError` if the path no longer exists, else `EntryUnreadableError`.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in _GONE:
            raise EntryGoneError(f"{path} is gone") from exc
        raise EntryUnreadableError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder except hidden files and files in hidden folders.

    Folders that are deleted meanwhile are skipped. Raises `OSError` for a folder that cannot be
    listed.
    """

    def raise_fault(exc: OSError) -> None:
        if exc.errno not in _GONE:
            raise exc

    for parent, folders, names in os.walk(folder, onerror=raise_fault):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent) / name
            if not name.startswith(".") and _is_regular(path):
                yield path


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError as exc:
        if exc.errno in _GONE:
            return False
        raise
