"""Aliases: names that point to models, with the history of their moves."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from serving.errors import ModelNotFoundError, TooManyAliasesError
from serving.store.alias_history import (
    AliasHistory,
    AliasMove,
    list_earlier,
    parse_history,
    write_history,
)
from storage import durable
from storage.file_cache import ParsedFileCache
from storage.locks import lock_exclusive

logger = logging.getLogger(__name__)

MAX_ALIASES = 1_000
"""Most alias names on record, including removed aliases, whose histories are kept."""


@dataclass(frozen=True)
class Alias:
    """The model that an alias points to, and the moves of the alias, oldest first."""

    model_id: str
    history: tuple[AliasMove, ...]

    def list_earlier(self) -> list[str]:
        """Return the targets of successive rollbacks, nearest first."""
        return list_earlier(self.history)


def find_alias(aliases: Mapping[str, Alias], name: str) -> Alias:
    """Return one alias; raises `ModelNotFoundError`."""
    if name not in aliases:
        raise ModelNotFoundError(f"there is no alias {name!r}", param="name", code="not_found")
    return aliases[name]


def find_names(aliases: Mapping[str, Alias], model_id: str) -> list[str]:
    """Return the names of the aliases that point to a model."""
    return [name for name, alias in aliases.items() if alias.model_id == model_id]


class AliasBook:
    """The aliases in one JSON file, which any number of processes may share.

    A second file is a copy. If the first file or one of its entries is missing or damaged, the copy
    is read instead, and the next change rewrites both files. A file is parsed again only after it
    has changed. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_suffix(f".copy{path.suffix}")  # `StorePaths.aliases_copy`
        self._lock = Lock()
        self._files = ParsedFileCache(_parse_file, reopens=True)
        self._reported: str | None = None

    def read(self) -> dict[str, Alias]:
        """Return all aliases by name; empty before the first alias is set.

        Raises `DamagedFileError` if neither file can be read.
        """
        return _list_aliases(self._read_stored().histories)

    def read_past_models(self) -> set[str]:
        """Return every model that an alias points to or has pointed to."""
        histories = self._read_stored().histories.values()
        return set().union(*(history.list_models() for history in histories))

    @contextmanager
    def change(self) -> Iterator["AliasChange"]:
        """Hold the lock on the aliases during the body, then write what the body changed."""
        with self._lock_file():
            before = self._read_stored()
            change = AliasChange(dict(before.histories))
            yield change
            if change.histories != before.histories:
                self._write(before, change.histories)

    def ensure_copy(self) -> None:
        """Write the copy if it does not exist, for example after an upgrade."""
        with self._lock_file():
            if self._path.exists() and not self._copy.exists():
                stored = self._read_stored()
                if not stored.problem:
                    self._write(stored, stored.histories)

    def _lock_file(self) -> AbstractContextManager[None]:
        return lock_exclusive(self._path.with_name(".aliases.lock"))

    def _read_stored(self) -> "_StoredAliases":
        """Read the first file; read damaged or missing entries from the copy."""
        with self._lock:
            stored = self._read_file(self._path)
            if stored.problem or not stored.is_there:
                stored = self._recover(stored)
            self._report(stored.problem)
            return stored

    def _recover(self, stored: "_StoredAliases") -> "_StoredAliases":
        """Replace damaged entries by those of the copy.

        Raises `DamagedFileError` if neither file can be read.
        """
        copy = self._read_file(self._copy)
        if not copy.is_there or copy.is_unreadable:
            if stored.is_unreadable:
                raise durable.DamagedFileError(
                    self._path,
                    f"{stored.problem}, and there is no intact {self._copy.name!r}; restore "
                    "one of them from a backup, or remove both to start without aliases",
                )
            return stored
        if stored.is_unreadable or not stored.is_there:
            return replace(copy, problem=stored.problem or "it is missing")
        # A removed alias keeps its entry in both files, so it is not restored here.
        lost = stored.damaged.keys() & copy.histories.keys()
        return replace(
            stored,
            histories={**stored.histories, **{name: copy.histories[name] for name in lost}},
            damaged={name: stored.damaged[name] for name in stored.damaged.keys() - lost},
        )

    def _read_file(self, path: Path) -> "_StoredAliases":
        """Return the current content of a file; never raises."""
        try:
            return self._files.read(str(path))
        except FileNotFoundError:
            return _StoredAliases({}, {}, is_there=False)
        except OSError as exc:
            return _StoredAliases({}, {}, f"it cannot be read: {exc}", is_unreadable=True)

    def _write(self, before: "_StoredAliases", histories: Mapping[str, AliasHistory]) -> None:
        """Write both files, including the damaged entries as they were read.

        A damaged first file is copied to a `.damaged` file before.
        """
        if before.problem and self._path.exists():
            shutil.copyfile(self._path, self._path.with_suffix(f".damaged{self._path.suffix}"))
        entries = {name: write_history(history) for name, history in histories.items()}
        kept = {name: entry for name, entry in before.damaged.items() if name not in entries}
        for path in (self._path, self._copy):
            durable.write_json(path, {**kept, **entries})

    def _report(self, problem: str | None) -> None:
        """Log a problem once, not at every read: the generators read every second."""
        if problem and problem != self._reported:
            logger.error(
                "%s is damaged: %s; the content of %s is used", self._path, problem, self._copy.name
            )
        self._reported = problem


@dataclass(frozen=True)
class _StoredAliases:
    """The content of one file, never modified; `problem` describes what is wrong with the file."""

    histories: Mapping[str, AliasHistory]
    damaged: Mapping[str, Any]
    problem: str | None = None
    is_there: bool = True
    is_unreadable: bool = False


def _parse_file(path: Path) -> _StoredAliases:
    """Parse all entries and separate the damaged ones; raises `OSError`."""
    try:
        written = durable.read_json(path)
    except (ValueError, RecursionError) as exc:
        return _StoredAliases({}, {}, f"it cannot be read: {exc}", is_unreadable=True)
    if not isinstance(written, dict):
        found = type(written).__name__
        problem = f"it holds a {found}; expected an object"
        return _StoredAliases({}, {}, problem, is_unreadable=True)
    histories: dict[str, AliasHistory] = {}
    damaged: dict[str, Any] = {}
    for name, entry in written.items():
        try:
            histories[name] = parse_history(entry)
        except (LookupError, TypeError, ValueError):
            damaged[name] = entry
    names = ", ".join(repr(name) for name in sorted(damaged))
    return _StoredAliases(histories, damaged, f"it has damaged entries: {names}" if names else None)


@dataclass
class AliasChange:
    """The aliases to write after a change."""

    histories: dict[str, AliasHistory]

    def find(self, name: str) -> Alias:
        """Return one alias; raises `ModelNotFoundError`."""
        return find_alias(_list_aliases(self.histories), name)

    def list_names(self, model_id: str) -> list[str]:
        """Return the sorted names of the aliases that point to a model."""
        return sorted(find_names(_list_aliases(self.histories), model_id))

    def point(self, name: str, model_id: str) -> Alias:
        """Point an alias to a model; the history does not change if it points there already."""
        history = self.histories.get(name, AliasHistory())
        if history.model_id != model_id:
            self._add(name, AliasMove(model_id, int(time.time())))
        return self.find(name)

    def check_new_name(self, name: str) -> None:
        """Raise `TooManyAliasesError` if `name` is new and `MAX_ALIASES` are on record."""
        if name not in self.histories and len(self.histories) >= MAX_ALIASES:
            raise TooManyAliasesError(
                f"there is no room for the alias {name!r}: {len(self.histories):,} aliases are on "
                f"record, removed ones included, and at most {MAX_ALIASES:,} can be; point one of "
                "them to the model, a removed one too"
            )

    def roll_back(self, name: str, is_there: Callable[[str], bool]) -> Alias:
        """Point an alias to the newest earlier model that still exists.

        Raises `ModelNotFoundError` if there is no such model.
        """
        alias = self.find(name)
        earlier = (model for model in alias.list_earlier() if model != alias.model_id)
        target = next(filter(is_there, earlier), None)
        if target is None:
            raise ModelNotFoundError(
                f"alias {name!r} has no earlier model to go back to", param="name", code="not_found"
            )
        self._add(name, AliasMove(target, int(time.time()), is_rollback=True))
        return self.find(name)

    def remove(self, name: str) -> None:
        """Remove an alias; its history stays on record. Raises `ModelNotFoundError`."""
        self.find(name)
        self._add(name, AliasMove(None, int(time.time())))

    def _add(self, name: str, move: AliasMove) -> None:
        self.histories[name] = self.histories.get(name, AliasHistory()).add(move)


def _list_aliases(histories: Mapping[str, AliasHistory]) -> dict[str, Alias]:
    """Return the aliases that have not been removed."""
    return {
        name: Alias(history.model_id, history.moves)
        for name, history in histories.items()
        if history.model_id is not None
    }
