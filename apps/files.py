"""Uploaded files: each has its own folder with the bytes, a `file.json` and what a check found."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from apps.errors import ApiError, not_found
from apps.file_index import (
    CHECK_NAME,
    RECORD_NAME,
    FileIndex,
    StoredBytes,
    describe_unchecked,
    read_check,
    read_file_record,
)
from storage import durable, versioned
from storage.durable import DamagedFileError
from storage.layout import StorageLayout, new_id
from storage.locks import HeldError, hold_alone, hold_shared
from storage.tombstones import bury_folder, remove_tombstones
from training.data.readers import KnownFile

logger = logging.getLogger(__name__)

Purpose = Literal["fine-tune", "fine-tune-results"]

_CONTENT_PREFIX = "data_"


class FileStore:
    """The files under a storage root; a file exists once its `file.json` does."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout
        self._index = FileIndex(layout.files)

    def take_in(self, content: Path, name: str, record: dict[str, Any]) -> dict[str, Any]:
        """Take over a file that was written in a scratch folder; returns it as it is shown.

        The folder that `content` is in becomes the file's own, with `name` for the bytes.
        """
        building = content.parent / new_id("file")
        building.mkdir()
        content.rename(building / name)
        durable.fsync_file(building / name)
        _write_record(building, record)
        final = self._layout.file(building.name)
        building.rename(final)
        durable.fsync_directory(final.parent)
        return self.get(final.name)

    def add(
        self, file_id: str, content: bytes, filename: str, purpose: Purpose = "fine-tune"
    ) -> None:
        """Put a file of our own beside the uploads, replacing an earlier version of it."""
        folder = self._layout.file(file_id)
        folder.mkdir(exist_ok=True)
        path = folder / make_safe_name(filename)
        if path.is_file() and path.read_bytes() == content and (folder / RECORD_NAME).is_file():
            return
        (folder / CHECK_NAME).unlink(missing_ok=True)
        durable.write_bytes(path, content)
        found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        _write_record(folder, {"filename": filename, "purpose": purpose, **found})

    def list_files(self) -> list[dict[str, Any]]:
        """All files as they are shown, newest first; one that cannot be read is left out."""
        found = self._index.list_files()
        return sorted(found, key=lambda file: (file["created_at"], file["id"]), reverse=True)

    def list_unchecked(self) -> list[str]:
        """The ids of files of rows that are still to be checked, oldest first."""
        return self._index.list_unchecked()

    def measure(self) -> StoredBytes:
        """Count the files and their bytes."""
        return self._index.measure()

    def remove_deleted(self) -> None:
        """Remove what is left of files whose deletion was cut short."""
        remove_tombstones(self._layout.files)

    def note_check(
        self,
        file_id: str,
        status: Literal["processed", "error"],
        details: str | None,
        found: dict[str, Any] | None,
    ) -> None:
        """Note what a check of a file found: whether its rows can be used, and their counts."""
        check = {"status": status, "status_details": details, "check": found}
        with suppress(FileNotFoundError):  # deleted meanwhile
            versioned.write_object(self._folder(file_id) / CHECK_NAME, check)

    def get(self, file_id: str) -> dict[str, Any]:
        """One file as it is shown; raises `ApiError` 404, or 500 if its record is damaged."""
        folder = self._folder(file_id)
        try:
            record = read_file_record(folder / RECORD_NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("file", file_id) from None
        except DamagedFileError as exc:
            message = f"file {file_id!r} cannot be read: {exc.reason}"
            raise ApiError(500, message, code="file_unreadable") from exc
        check = read_check(folder / CHECK_NAME)
        return {**record, **(check or describe_unchecked(record["purpose"]))}

    def find_content(self, file_id: str) -> Path:
        """Return the path of a file's bytes, which have the recorded size.

        Raises `ApiError` 404 for an unknown file, and 500 if its record or its bytes are damaged.
        """
        record = self.get(file_id)
        path = self._folder(file_id) / make_safe_name(record["filename"])
        size_bytes = path.stat().st_size if path.is_file() else None
        if size_bytes != record["bytes"]:
            found = "there is no such file" if size_bytes is None else f"found {size_bytes:,} bytes"
            logger.error("%s: %s, expected %d bytes", path, found, record["bytes"])
            raise _describe_damaged(record["filename"])
        return path

    def find_known(self, paths: Iterable[str]) -> dict[str, KnownFile]:
        """Return what was recorded of uploads when they were received, by their paths."""
        found = {}
        for path in paths:
            with suppress(FileNotFoundError):  # deleted, or no file of ours
                record = read_file_record(Path(path).parent / RECORD_NAME)
                found[path] = KnownFile(record["filename"], record["bytes"], record.get("sha256"))
        return found

    def check_unchanged(self, known: Mapping[str, KnownFile]) -> None:
        """Compare the bytes of files, by their paths, with the hashes of their uploads.

        Raises `ApiError` 500 for the first one that differs.
        """
        for path, file in known.items():
            if file.sha256 is not None and durable.hash_file(Path(path)) != file.sha256:
                logger.error("%s: its hash is not that of the upload, %s", path, file.sha256)
                raise _describe_damaged(file.name)

    def hold(self, file_id: str) -> IO[bytes]:
        """Keep a file until what is returned is closed; raises `ApiError` 404."""
        try:
            return hold_shared(self._folder(file_id) / RECORD_NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("file", file_id) from None

    def delete(self, file_id: str, check: Callable[[], None] = lambda: None) -> None:
        """Delete a file; it is renamed first, so that half a file never exists.

        `check` raises if somebody needs it, when nobody can begin to any more. Raises `ApiError`
        404, or 409 where somebody is about to need it.
        """
        folder = self._folder(file_id)
        try:
            with hold_alone(folder / RECORD_NAME):
                check()
                bury_folder(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("file", file_id) from None
        except HeldError:
            message = f"a job that needs file {file_id!r} is being created"
            raise ApiError(409, message, code="in_use") from None
        self.remove_deleted()

    def _folder(self, file_id: str) -> Path:
        try:
            return self._layout.file(file_id)
        except ValueError:
            raise not_found("file", file_id) from None


def make_safe_name(filename: str) -> str:
    """The name under which a file's bytes are kept: the client's, with nothing that leads away."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", filename.replace("\\", "/").rpartition("/")[2])[-100:]
    return f"{_CONTENT_PREFIX}{name.lstrip('.')}"


def find_filename(content: str | None) -> str | None:
    """Return the name of an upload by the path of its bytes; None for a path of another kind.

    Characters that `make_safe_name` replaces are not those of the client's own name.
    """
    name = Path(content or "").name
    return name.removeprefix(_CONTENT_PREFIX) if name.startswith(_CONTENT_PREFIX) else None


def _describe_damaged(name: str) -> ApiError:
    message = f"the server's copy of file {name!r} is damaged: it is not what was uploaded"
    return ApiError(500, f"{message}; upload the file again", code="file_unreadable")


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    head = {"id": folder.name, "object": "file", "created_at": int(time.time())}
    versioned.write_object(folder / RECORD_NAME, {**head, **record})
