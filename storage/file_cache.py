"""A cache of parsed files that detects changes, including those by other processes.

Inode, size and times of a file show whether it changed. File systems record times in ticks of a few
milliseconds: a file that changed less than `_SETTLED_S` before it was read may change again within
the same tick, so its cached value is not used for the next read.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from storage.regular_file import open_regular

Parsed = TypeVar("Parsed")

_SETTLED_S = 2.0
_RESCAN_S = 30.0


_Stamp = tuple[int, int, int, int]
"""Inode, size, and the times of the last change of content and of metadata in nanoseconds."""


_MAX_ENTRIES = 1_000_000
"""At least the possible number of files or jobs: a longer scan would get no cache hits at all."""


class _Entry(NamedTuple, Generic[Parsed]):
    stamp: _Stamp
    is_settled: bool
    value: Parsed


class ParsedFileCache(Generic[Parsed]):
    """An LRU cache of values parsed from small files, with at most `max_entries` entries.

    Safe with concurrent writers that replace files as `storage.durable` does. Not thread-safe: the
    owner must lock. With `reopens` a file is opened at every read, which makes a network file
    system ask its server for the current version.
    """

    def __init__(
        self,
        parse: Callable[[Path], Parsed],
        max_entries: int = _MAX_ENTRIES,
        *,
        reopens: bool = False,
    ) -> None:
        self._parse = parse
        self._max_entries = max_entries
        self._reopens = reopens
        self._entries: OrderedDict[str, _Entry[Parsed]] = OrderedDict()

    def read(self, path: str) -> Parsed:
        """Return the parsed current content; raises the errors of `os.stat`, `open` and `parse`."""
        found = _open_and_stat(path) if self._reopens else os.stat(path)
        stamp = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        entry = self._entries.get(path)
        if entry is not None and entry.is_settled and entry.stamp == stamp:
            self._entries.move_to_end(path)
            return entry.value
        self._entries.pop(path, None)
        value = self._parse(Path(path))
        self._entries[path] = _Entry(stamp, _is_settled(found.st_mtime_ns), value)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return value

    def forget(self, path: str) -> None:
        """Drop a file that no longer exists."""
        self._entries.pop(path, None)

    def keep_only(self, paths: Collection[str]) -> None:
        """Drop all files except these."""
        for path in self._entries.keys() - paths:
            del self._entries[path]


class FolderWatch:
    """Detects whether entries may have been added to or removed from a folder since the last check.

    Also reports a change every `_RESCAN_S` seconds, since changes over NFS may be visible late.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._rescan_at = 0.0

    def check_changed(self) -> bool:
        """Return whether to list the folder again; raises `OSError` if it cannot be read."""
        found = os.stat(self._folder)
        stamp = found.st_ino, found.st_mtime_ns
        now = time.monotonic()
        if stamp == self._seen and now < self._rescan_at:
            return False
        if stamp != self._seen:
            # If the time is not settled, forget it, so that the next call reports a change again.
            self._seen = stamp if _is_settled(found.st_mtime_ns) else None
        self._rescan_at = now + _RESCAN_S
        return True

    def reset(self) -> None:
        """Report a change at the next check; call it if listing the folder failed."""
        self._seen = None


def _open_and_stat(path: str) -> os.stat_result:
    with open_regular(path) as file:
        return os.fstat(file.fileno())


def _is_settled(mtime_ns: int) -> bool:
    return time.time_ns() - mtime_ns > _SETTLED_S * 1e9
