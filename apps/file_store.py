"""Uploaded files: each has its own folder with content, `file.json` and the result of its check."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from apps.errors import ApiError, not_found
from apps.file_index import (
    CHECK_NAME,
    RECORD_NAME,
    CheckError,
    FileIndex,
    FileObject,
    NewFile,
    StoredBytes,
    describe_file,
    read_check,
    read_file_record,
)
from storage import durable, versioned_json
from storage.durable import DamagedFileError
from storage.layout import StorageLayout, new_id
from storage.locks import LockedError, lock_existing, lock_shared
from storage.tombstones import remove_tombstones, rename_to_tombstone
from training.data.readers import KnownFile

logger = logging.getLogger(__name__)

Purpose = Literal["fine-tune", "fine-tune-results"]

_CONTENT_PREFIX = "data_"


class FileStore:
    """The files under a storage root; a file exists once its `file.json` does."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout
        self._index = FileIndex(layout.files)

    def add_upload(self, content: Path, name: str, record: NewFile) -> FileObject:
        """Move a file from a scratch folder into the store; return it as the API shows it.

        The content, under `name`, and the record are put into a new folder inside the scratch
        folder, which is renamed to the file's final folder once it is complete.
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
        """Store a file of the application itself, replacing an earlier version of it."""
        folder = self._layout.file(file_id)
        folder.mkdir(exist_ok=True)
        path = folder / make_safe_name(filename)
        if path.is_file() and path.read_bytes() == content and (folder / RECORD_NAME).is_file():
            return
        (folder / CHECK_NAME).unlink(missing_ok=True)
        durable.write_bytes(path, content)
        record: NewFile = {
            "filename": filename,
            "purpose": purpose,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        _write_record(folder, record)

    def list_files(self) -> list[FileObject]:
        """Return all files as the API shows them, newest first; unreadable ones are omitted."""
        found = self._index.list_files()
        return sorted(found, key=lambda file: (file["created_at"], file["id"]), reverse=True)

    def list_unchecked(self) -> list[str]:
        """Return the ids of files of rows that are still to be checked, oldest first."""
        return self._index.list_unchecked()

    def measure(self) -> StoredBytes:
        """Count the files and their bytes."""
        return self._index.measure()

    def remove_deleted(self) -> None:
        """Remove the remains of files whose deletion was interrupted."""
        remove_tombstones(self._layout.files)

    def record_check(
        self,
        file_id: str,
        status: Literal["processed", "error"],
        details: str | None,
        found: Mapping[str, object] | None,
        error_code: CheckError | None = None,
    ) -> None:
        """Store the result of a file's check: whether its rows can be used, and their counts."""
        check = {"status": status, "status_details": details, "check": found}
        if error_code is not None:
            check["error_code"] = error_code
        with suppress(FileNotFoundError):  # deleted meanwhile
            versioned_json.write_object(self._folder(file_id) / CHECK_NAME, check)

    def get(self, file_id: str) -> FileObject:
        """Return a file as the API shows it; raises `ApiError` 404, or 500 for a damaged record."""
        folder = self._folder(file_id)
        try:
            record = read_file_record(folder / RECORD_NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("file", file_id) from None
        except DamagedFileError as exc:
            message = f"file {file_id!r} cannot be read: {exc.reason}"
            raise ApiError(500, message, code="file_unreadable") from exc
        return describe_file(record, read_check(folder / CHECK_NAME))

    def find_content(self, file_id: str) -> Path:
        """Return the path of a file's content, after comparing its size with the record.

        Raises `ApiError` 404 for an unknown file, and 500 if its record or its content is damaged.
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
        """Return the upload records of files, by path; paths without a record are omitted."""
        found = {}
        for path in paths:
            with suppress(FileNotFoundError):  # deleted, or not an uploaded file
                record = read_file_record(Path(path).parent / RECORD_NAME)
                found[path] = KnownFile(record["filename"], record["bytes"], record.get("sha256"))
        return found

    def check_unchanged(self, known: Mapping[str, KnownFile]) -> None:
        """Compare the content of files, by path, with the hashes of their uploads.

        Raises `ApiError` 500 for the first one that differs.
        """
        for path, file in known.items():
            if file.sha256 is not None and durable.hash_file(Path(path)) != file.sha256:
                logger.error("%s: its hash is not that of the upload, %s", path, file.sha256)
                raise _describe_damaged(file.name)

    def lock_shared(self, file_id: str) -> IO[bytes]:
        """Lock a file against deletion until the result is closed; raises `ApiError` 404."""
        try:
            return lock_shared(self._folder(file_id) / RECORD_NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("file", file_id) from None

    def delete(self, file_id: str, check: Callable[[], None] = lambda: None) -> None:
        """Delete a file; its folder is renamed first, so that no partial file is ever visible.

        `check` raises if the file is in use; it is called while the file is locked, when no new use
        can start. Raises `ApiError` 404 for an unknown file, and 409 if a job that needs it is
        being created.
        """
        folder = self._folder(file_id)
        try:
            with lock_existing(folder / RECORD_NAME):
                check()
                rename_to_tombstone(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("file", file_id) from None
        except LockedError:
            message = f"a job that needs file {file_id!r} is being created"
            raise ApiError(409, message, code="in_use") from None
        self.remove_deleted()

    def _folder(self, file_id: str) -> Path:
        try:
            return self._layout.file(file_id)
        except ValueError:
            raise not_found("file", file_id) from None


def make_safe_name(filename: str) -> str:
    """Return the name of a file's content: the client's, limited to safe characters."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", filename.replace("\\", "/").rpartition("/")[2])[-100:]
    return f"{_CONTENT_PREFIX}{name.lstrip('.')}"


def find_filename(content: str | None) -> str | None:
    """Return the filename of an upload from the path of its content; None for other paths.

    Characters that `make_safe_name` replaced are not restored.
    """
    name = Path(content or "").name
    return name.removeprefix(_CONTENT_PREFIX) if name.startswith(_CONTENT_PREFIX) else None


def _describe_damaged(name: str) -> ApiError:
    message = f"the server's copy of file {name!r} is damaged: it is not what was uploaded"
    return ApiError(500, f"{message}; upload the file again", code="file_unreadable")


def _write_record(folder: Path, record: NewFile) -> None:
    head = {"id": folder.name, "object": "file", "created_at": int(time.time())}
    versioned_json.write_object(folder / RECORD_NAME, {**head, **record})
