"""Index of the runs under a storage root; only records that changed are read again.

Any process may have its own index: records are found and read on disk, where the queue and the
runs' own processes write them. An entry that cannot be read is logged, and does not hide the other
runs.
"""

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from storage.durable import DamagedFileError
from storage.file_cache import FolderWatch, ParsedFileCache
from storage.layout import StorageLayout, is_plain_name
from storage.regular_file import read_regular
from system.fault_log import FaultLog
from training.run.folder import RunFolder
from training.run.run_record import RunRecord, read_run_record

logger = logging.getLogger(__name__)

_RECORD_NAME = "run.json"


@dataclass(frozen=True)
class UnreadableRun:
    """A run whose record cannot be read, or is of a newer version."""

    run: RunFolder
    reason: str

    def may_need(self, identifier: str) -> bool:
        """Return whether the run might need the file or model of this id.

        That is so if the record contains the id anywhere, or if it cannot be read at all.
        """
        try:
            return identifier.encode() in read_regular(self.run.record_file)
        except FileNotFoundError:  # deleted just now
            return False
        except OSError:
            return True


@dataclass(frozen=True)
class IndexedRuns:
    """The contents of an index: the runs, newest first, and those that cannot be read."""

    runs: list[tuple[RunFolder, RunRecord]]
    unreadable: list[UnreadableRun]


class RunIndex:
    """Finds runs and their records; safe to share between threads."""

    def __init__(self, layout: StorageLayout) -> None:
        self._root = layout.runs
        self._lock = Lock()
        self._records = ParsedFileCache(_read_own_record)
        self._watch = FolderWatch(layout.runs)
        self._faults = FaultLog(logger)
        self._folders: dict[str, RunFolder] = {}
        self._found: dict[str, RunRecord | UnreadableRun] = {}
        self._open: set[str] = set()  # names of runs that have not ended, or cannot be read

    def scan(self) -> IndexedRuns:
        """Return all runs; checks the record of each, and reads those that changed.

        Raises `OSError` if the folder of all runs cannot be read.
        """
        with self._lock:
            self._scan_all()
            return self._collect(self._found.keys())

    def scan_unfinished(self) -> IndexedRuns:
        """Return the runs that have not ended, and those that cannot be read.

        Checks ended runs only when a run was added or removed, and every half a minute, and those
        given to `record_reopened`. Raises as `scan` does.
        """
        with self._lock:
            if self._watch.check_changed():
                self._scan_all()
            else:
                for name in list(self._open):
                    self._update(name)
            return self._collect(self._open & self._found.keys())

    def count(self) -> tuple[int, int]:
        """Return the number of runs and the number of those that have not ended."""
        found = self.scan()
        num_unfinished = sum(not record.is_final for _, record in found.runs)
        return len(found.runs) + len(found.unreadable), num_unfinished

    def record_reopened(self, run_id: str) -> None:
        """Record that a run that had ended was resumed."""
        with self._lock:
            self._found.pop(run_id, None)
            self._open.add(run_id)

    def _scan_all(self) -> None:
        try:
            names = self._list_names()
        except OSError:
            self._watch.reset()
            raise
        for name in self._found.keys() - names:
            self._forget(name)
        for name in names:
            self._update(name)
        self._faults.keep_only(map(self._name_item, names))

    def _list_names(self) -> set[str]:
        names = set()
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.startswith("."):  # being built or removed
                    continue
                names.add(entry.name)
        return names

    def _update(self, name: str) -> None:
        """Update the index from the record of one entry."""
        path = f"{self._root}/{name}/{_RECORD_NAME}"
        try:
            record = self._records.read(path)
        except FileNotFoundError:  # being restored, or deleted just now
            self._forget(name)
        except NotADirectoryError:
            self._forget(name)
            self._faults.report(self._name_item(name), "is not a folder and is ignored")
        except (OSError, DamagedFileError) as exc:
            self._index_unreadable(name, exc)
        else:
            if self._found.get(name) is not record:
                self._index_record(name, record)

    def _index_record(self, name: str, record: RunRecord) -> None:
        self._faults.clear(self._name_item(name))
        self._found[name] = record
        if name not in self._folders:
            self._folders[name] = RunFolder(self._root / name)
        if record.is_final:
            self._open.discard(name)
        else:
            self._open.add(name)

    def _index_unreadable(self, name: str, exc: OSError | DamagedFileError) -> None:
        if not is_plain_name(name):
            self._forget(name)
            self._faults.report(self._name_item(name), "is not the name of a run and is ignored")
            return
        reason = describe_fault(exc)
        self._faults.report(self._name_item(name), f"cannot be read: {reason}")
        run = self._folders.setdefault(name, RunFolder(self._root / name))
        self._found[name] = UnreadableRun(run, reason)
        self._open.add(name)

    def _forget(self, name: str) -> None:
        self._records.forget(f"{self._root}/{name}/{_RECORD_NAME}")
        self._found.pop(name, None)
        self._folders.pop(name, None)
        self._open.discard(name)

    def _collect(self, names: Collection[str]) -> IndexedRuns:
        runs: list[tuple[RunFolder, RunRecord]] = []
        unreadable: list[UnreadableRun] = []
        for name in names:
            found = self._found[name]
            if isinstance(found, UnreadableRun):
                unreadable.append(found)
            else:
                runs.append((self._folders[name], found))
        runs.sort(key=lambda pair: (pair[1].created_at, pair[1].id), reverse=True)
        unreadable.sort(key=lambda found: found.run.path.name, reverse=True)
        return IndexedRuns(runs, unreadable)

    @staticmethod
    def _name_item(name: str) -> str:
        return f"entry {name!r} of the folder of runs"


def _read_own_record(path: Path) -> RunRecord:
    record = read_run_record(path)
    if record.id != path.parent.name:  # a copy of another run's folder
        raise DamagedFileError(
            path, f"its id is {record.id!r}, expected that of its folder {path.parent.name!r}"
        )
    return record


def describe_fault(exc: OSError | DamagedFileError) -> str:
    """Describe why a stored file cannot be read, without its path, since clients see the text."""
    if isinstance(exc, DamagedFileError):
        return exc.reason
    return exc.strerror or type(exc).__name__
