"""Parsed files that are read again only after they changed, also by other processes.

A file's inode, size and times tell whether it changed. File systems record times in ticks of a few
milliseconds: a file that changed less than `_SETTLED_S` before it was read may change once more
within the same tick, so what was read then is not relied on the next time.
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
"""No fewer than there may be files or jobs: a scan of more than fit would find none of them."""


class _Entry(NamedTuple, Generic[Parsed]):
    stamp: _Stamp
    is_settled: bool
    value: Parsed


class ParsedFileCache(Generic[Parsed]):
    """Values parsed from small files, at most `max_entries`; the least recently used ones go.

    Safe under concurrent writers that replace files as `storage.durable` does. Not thread-safe:
    the owner locks. With `reopens` a file is opened whenever it is looked at, which has a network
    file system ask its server for the current one.
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
        """Return what a file contains now; raises what `os.stat`, `open` and the parser raise."""
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
        """Drop a file that is gone."""
        self._entries.pop(path, None)

    def keep_only(self, paths: Collection[str]) -> None:
        """Drop all other files, which are gone."""
        for path in self._entries.keys() - paths:
            del self._entries[path]


class FolderWatch:
    """Reports whether entries may have been added to a folder, or removed, since the last look.

    Reports so every `_RESCAN_S` seconds in any case: over NFS a change may be seen late.
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
            # Not yet settled: the next call compares with nothing and reports a change again.
            self._seen = stamp if _is_settled(found.st_mtime_ns) else None
        self._rescan_at = now + _RESCAN_S
        return True

    def reset(self) -> None:
        """Report a change the next time, because listing the folder failed."""
        self._seen = None


def _open_and_stat(path: str) -> os.stat_result:
    with open_regular(path) as file:
        return os.fstat(file.fileno())


def _is_settled(mtime_ns: int) -> bool:
    return time.time_ns() - mtime_ns > _SETTLED_S * 1e9
