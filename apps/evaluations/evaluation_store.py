"""The evaluations below a storage root: each has a folder with its record and its rows."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from apps.errors import ApiError, not_found
from apps.evaluations.evaluation_record import (
    EvaluationRecord,
    StoredRow,
    parse_stored_row,
    read_evaluation_record,
)
from storage import durable, versioned_json
from storage.durable import DamagedFileError
from storage.file_cache import ParsedFileCache
from storage.layout import StorageLayout, is_plain_name
from storage.regular_file import open_regular
from storage.scratch import build_in_scratch
from storage.tombstones import remove_tombstones, rename_to_tombstone
from system.fault_log import FaultLog

logger = logging.getLogger(__name__)

BUILDING_PREFIX = ".building-"
RECORD_NAME, ROWS_NAME = "evaluation.json", "rows.jsonl"
_NUM_KNOWN = 10_000


class EvaluationStore:
    """Finds, reads and writes evaluations; safe to share between threads.

    Any process may read; only the queue writes. An evaluation that cannot be read is logged, and
    does not hide the others.
    """

    def __init__(self, layout: StorageLayout) -> None:
        self._paths = layout.evaluations
        self._lock = Lock()
        self._records = ParsedFileCache(read_evaluation_record, _NUM_KNOWN)
        self._faults = FaultLog(logger)

    def list_all(self) -> list[EvaluationRecord]:
        """Return all evaluations, newest first; raises `OSError` if their folder is unreadable."""
        with self._lock:
            names = self._list_names()
            self._records.keep_only({self._name_record(name) for name in names})
            self._faults.keep_only(map(_name_item, names))
            found = [record for name in names if (record := self._find(name)) is not None]
        return sorted(found, key=lambda record: (record.created_at, record.id), reverse=True)

    def count(self) -> int:
        """Return the number of evaluations, readable or not."""
        with self._lock:
            return len(self._list_names())

    def get(self, evaluation_id: str) -> EvaluationRecord:
        """Return one evaluation; raises `ApiError` 404, or 500 for one that cannot be read."""
        try:
            return read_evaluation_record(self._find_folder(evaluation_id) / RECORD_NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("evaluation", evaluation_id) from None
        except DamagedFileError as exc:
            message = f"evaluation {evaluation_id!r} cannot be read: {exc.reason}"
            raise ApiError(500, message, code="evaluation_unreadable") from exc

    def add(self, record: EvaluationRecord) -> None:
        """Add a new evaluation, which appears as a whole."""
        with build_in_scratch(self._paths.folder, BUILDING_PREFIX) as building:
            _write(building, record)
            durable.move_directory(building, self._paths.find(record.id))

    def replace(self, record: EvaluationRecord) -> None:
        """Replace the record of an evaluation."""
        _write(self._paths.find(record.id), record)

    def add_row(self, evaluation_id: str, row: StoredRow) -> None:
        """Append a row that is done."""
        durable.append_json_line(self._paths.find(evaluation_id) / ROWS_NAME, row.model_dump())

    def flush_rows(self, evaluation_id: str) -> None:
        """Make the rows durable."""
        path = self._paths.find(evaluation_id) / ROWS_NAME
        if path.exists():
            durable.fsync_file(path)

    def iterate_rows(self, evaluation_id: str) -> Iterator[StoredRow]:
        """Yield the rows that are done, one in memory at a time; damaged lines are left out."""
        path = self._paths.find(evaluation_id) / ROWS_NAME
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return
        with file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # being written, or cut by a crash
                    return
                row = parse_stored_row(line)
                if row is not None:
                    yield row
                elif line.strip():
                    logger.warning("line %d of %s is damaged and is left out", number, path)

    def delete(self, evaluation_id: str) -> None:
        """Delete an evaluation, readable or not; raises `ApiError` 404."""
        folder = self._find_folder(evaluation_id)
        try:
            (folder / RECORD_NAME).lstat()
            rename_to_tombstone(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found("evaluation", evaluation_id) from None
        self.remove_deleted()

    def remove_deleted(self) -> None:
        """Remove the remains of evaluations whose deletion was interrupted."""
        remove_tombstones(self._paths.folder)

    def _find_folder(self, evaluation_id: str) -> Path:
        try:
            return self._paths.find(evaluation_id)
        except ValueError:
            raise not_found("evaluation", evaluation_id) from None

    def _list_names(self) -> list[str]:
        try:
            with os.scandir(self._paths.folder) as entries:
                return [entry.name for entry in entries if is_plain_name(entry.name)]
        except FileNotFoundError:
            return []

    def _name_record(self, name: str) -> str:
        return f"{self._paths.folder}/{name}/{RECORD_NAME}"

    def _find(self, name: str) -> EvaluationRecord | None:
        try:
            record = self._records.read(self._name_record(name))
        except (FileNotFoundError, NotADirectoryError):  # deleted just now, or being restored
            return None
        except (OSError, DamagedFileError) as exc:
            self._faults.report(_name_item(name), f"cannot be read: {exc}")
            return None
        self._faults.clear(_name_item(name))
        return record


def find_evaluation_of(store: EvaluationStore, identifier: str) -> str | None:
    """Return the id of an evaluation that has not ended and needs a model or a file, or None."""
    for record in store.list_all():
        if not record.is_final and identifier in record.list_needed():
            return record.id
    return None


def _write(folder: Path, record: EvaluationRecord) -> None:
    versioned_json.write_object(folder / RECORD_NAME, record.model_dump(mode="json"))


def _name_item(name: str) -> str:
    return f"evaluation {name!r}"
