"""The on-disk format of snapshots of a storage root, and the reading of their manifests.

<folder>/<time>/manifest.json   format, time, storage root, and size and SHA-256 of each file
<folder>/<time>/content/        the files, at their paths relative to the storage root
"""

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from storage import durable

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
CONTENT_NAME = "content"
_TIME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}T.*")  # names sort by time


class BackupError(ValueError):
    """A snapshot cannot be made or restored; the message contains the reason."""


class BackedUpFile(BaseModel):
    """One file of a snapshot."""

    model_config = ConfigDict(frozen=True)

    size_bytes: int
    sha256: str
    source: tuple[int, int, int] = Field(
        description="Inode, modification time in ns and size when it was copied; a file in which "
        "these are the same is taken as unchanged."
    )


class LeftOut(BaseModel):
    """A file, run, model or checkpoint that a snapshot does not contain."""

    model_config = ConfigDict(frozen=True)

    path: str = Field(description="Relative to the storage root.")
    reason: Literal["deleted", "unreadable"] = Field(
        description="Deleted while the snapshot was made, or not readable."
    )
    detail: str = Field("", description="The fault, for people.")


class Manifest(BaseModel):
    """The content list of a snapshot."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    created_at: int = Field(description="Unix seconds.")
    storage: str = Field(description="The storage root that was copied.")
    files: dict[str, BackedUpFile] = Field(description="By path, relative to the root.")
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """One complete snapshot."""

    path: Path
    manifest: Manifest
    num_reused: int = 0

    @property
    def size_bytes(self) -> int:
        """The total size of all files."""
        return sum(file.size_bytes for file in self.manifest.files.values())

    @property
    def unreadable(self) -> list[LeftOut]:
        """The entries that are left out because they could not be read."""
        return [entry for entry in self.manifest.left_out if entry.reason == "unreadable"]

    def find_content(self, name: str) -> Path:
        """Return the path of the copy of one file."""
        return self.path / CONTENT_NAME / name


def make_snapshot_name() -> str:
    """Return the name for a snapshot that is completed now."""
    return datetime.now(UTC).strftime(_TIME_FORMAT)


def find_newest_snapshot(folder: Path) -> Snapshot | None:
    """Return the newest complete, readable snapshot in a folder, or None.

    Newer unreadable snapshots are logged and skipped; older ones are not opened. Folders whose
    names do not begin with a date are ignored.
    """
    names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for name in reversed(names):
        try:
            if (folder / name / MANIFEST_NAME).is_file():
                return _read_snapshot(folder / name)
        except (BackupError, OSError) as exc:
            logger.warning("the snapshot %s is skipped: %s", folder / name, exc)
    return None


def open_snapshot(path: Path) -> Snapshot:
    """Open a snapshot, or the newest readable snapshot in a folder of snapshots.

    Raises `BackupError` if there is none, or if its format is not `FORMAT_VERSION`.
    """
    if (path / MANIFEST_NAME).is_file():
        return _read_snapshot(path)
    newest = find_newest_snapshot(path) if path.is_dir() else None
    if newest is None:
        raise BackupError(
            f"{str(path)!r} is no backup: it has no {MANIFEST_NAME}, and no snapshot in it that "
            "can be read"
        )
    return newest


def _read_snapshot(path: Path) -> Snapshot:
    manifest = _read_manifest(path)
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise BackupError(f"the manifest of {str(path)!r} names {name!r}, outside of a storage")
    return Snapshot(path, manifest)


def _read_manifest(path: Path) -> Manifest:
    try:
        written: dict[str, Any] = durable.read_json(path / MANIFEST_NAME)
        version = written["format_version"]
        if version == FORMAT_VERSION:
            return Manifest.model_validate(written)
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise BackupError(f"{str(path / MANIFEST_NAME)!r} cannot be read: {exc}") from exc
    raise BackupError(
        f"{str(path)!r} has format {version}, expected {FORMAT_VERSION}; restore it with the "
        "version of Tuneserve that made it"
    )
