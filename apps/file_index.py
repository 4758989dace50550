"""Index of the records of uploaded files; only records that changed are read again.

A record that cannot be read is logged, and does not hide the other files.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, NotRequired, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.durable import DamagedFileError
from storage.file_cache import FolderWatch, ParsedFileCache
from storage.layout import is_plain_name
from storage.versioned_json import FORMAT_KEY, NewerFormatError, explain_invalid, read_object
from system.fault_log import FaultLog

logger = logging.getLogger(__name__)

RECORD_NAME = "file.json"
CHECK_NAME = "check.json"
ROWS_PURPOSE = "fine-tune"

CheckStatus = Literal["uploaded", "processed", "error"]
CheckError = Literal["unknown_columns", "invalid_rows"]
"""Why a check failed: it does not know the columns of the rows, or some rows are invalid."""


class NewFile(TypedDict):
    """What is stored about a file when it is added."""

    filename: str
    purpose: str
    bytes: int
    sha256: NotRequired[str]


class StoredFile(NewFile):
    """The record of a file, as in `file.json`; it may have further keys."""

    id: str
    object: NotRequired[Literal["file"]]
    created_at: int


class FileCheck(TypedDict):
    """What the check of a file counted; earlier releases counted less."""

    model: str
    format: str
    num_rows: int
    num_tokens: int
    learned_share: float
    ignored_keys: NotRequired[dict[str, int]]
    task: NotRequired[str]
    label_counts: NotRequired[dict[str, int]]


class StoredCheck(TypedDict):
    """The result of a file's check, as in `check.json`."""

    status: CheckStatus
    status_details: str | None
    check: NotRequired[FileCheck | None]
    error_code: NotRequired[CheckError | None]


class FileObject(StoredFile, StoredCheck):
    """A file as the API shows it."""


class _FileRecord(BaseModel):
    """The required keys of a `file.json`; other keys are returned unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    id: str
    created_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: str
    bytes: int = Field(ge=0)


class StoredBytes(NamedTuple):
    """The number of stored files and their total size."""

    num_files: int
    size_bytes: int


def read_file_record(path: Path) -> StoredFile:
    """Read a file.json, without its format version.

    Raises `FileNotFoundError`, or `DamagedFileError` for a record that cannot be used.
    """
    value = read_object(path)
    try:
        record = _FileRecord.model_validate(value)
    except ValidationError as exc:
        fault = exc.errors()[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise explain_invalid(path, value, reason) from exc
    if record.id != path.parent.name:
        raise DamagedFileError(
            path, f"its id is {record.id!r}, expected that of its folder {path.parent.name!r}"
        )
    return cast(StoredFile, _drop_format(value))


def read_check(path: Path) -> StoredCheck | None:
    """Read the result of a file's check; None if the file was not checked.

    A damaged result is logged and counts as none, so that the file is checked again. A result of a
    newer version is kept, and the returned details state that it cannot be read.
    """
    try:
        value = read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except NewerFormatError as exc:
        return {"status": "processed", "status_details": f"its check cannot be read: {exc.reason}"}
    except DamagedFileError:
        logger.exception("the check of a file cannot be read; the file is checked again")
        return None
    return cast(StoredCheck, _drop_format(value))


def _drop_format(value: Mapping[str, object]) -> dict[str, object]:
    return {key: value[key] for key in value if key != FORMAT_KEY}


class FileIndex:
    """Finds files and their records; safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._lock = Lock()
        self._records = ParsedFileCache(read_file_record)
        self._checks = ParsedFileCache(read_check)
        self._watch = FolderWatch(folder)
        self._faults = FaultLog(logger)
        self._unchecked: set[str] = set()

    def list_files(self) -> list[FileObject]:
        """Return the record of each file with the result of its check, in no particular order."""
        with self._lock:
            names = self._list_names()
            self._faults.keep_only(map(_name_item, names))
            return [file for name in names if (file := self._find(name)) is not None]

    def list_unchecked(self) -> list[str]:
        """Return the ids of files of rows that are still to be checked, oldest first.

        Looks at the other files only when a file was added or removed, and every half a minute.
        """
        with self._lock:
            if self._watch.check_changed():
                try:
                    self._unchecked = self._list_names()
                except OSError:
                    self._watch.reset()
                    raise
            found = {name: self._find(name) for name in self._unchecked}
            # Files with a missing or damaged record are read again the next time.
            self._unchecked = {
                name for name, file in found.items() if file is None or _is_unchecked(file)
            }
            return sorted(name for name in self._unchecked if found[name] is not None)

    def measure(self) -> StoredBytes:
        """Count the files and their bytes."""
        files = self.list_files()
        return StoredBytes(len(files), sum(file["bytes"] for file in files))

    def _list_names(self) -> set[str]:
        with os.scandir(self._root) as entries:
            return {entry.name for entry in entries if is_plain_name(entry.name)}

    def _find(self, name: str) -> FileObject | None:
        """Return a file as the API shows it; None if it is missing or unreadable (logged)."""
        folder = f"{self._root}/{name}"
        try:
            record = self._records.read(f"{folder}/{RECORD_NAME}")
        except (
            FileNotFoundError,
            NotADirectoryError,
        ):  # being restored; deleted; not an uploaded file
            self._records.forget(f"{folder}/{RECORD_NAME}")
            self._checks.forget(f"{folder}/{CHECK_NAME}")
            return None
        except (OSError, DamagedFileError) as exc:
            self._faults.report(_name_item(name), f"cannot be read: {exc}")
            return None
        self._faults.clear(_name_item(name))
        return describe_file(record, self._find_check(folder))

    def _find_check(self, folder: str) -> StoredCheck | None:
        try:
            return self._checks.read(f"{folder}/{CHECK_NAME}")
        except FileNotFoundError:
            return None
        except OSError:
            logger.exception("what a check of %s found cannot be read", folder)
            return None


def describe_file(record: StoredFile, check: StoredCheck | None) -> FileObject:
    """Return a file as the API shows it, with the result of its check if it was checked."""
    if check is None:
        status: CheckStatus = "uploaded" if record["purpose"] == ROWS_PURPOSE else "processed"
        check = {"status": status, "status_details": None}
    return {**record, **check}


def _is_unchecked(file: FileObject) -> bool:
    return (file["purpose"], file["status"]) == (ROWS_PURPOSE, "uploaded")


def _name_item(name: str) -> str:
    return f"file {name!r}"
