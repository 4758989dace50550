"""Names that move from model to model, with every move that they made."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from serving.errors import ModelNotFoundError
from storage import durable
from storage.locks import take_turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AliasMove:
    """An alias was pointed to `model_id` at `at`, in Unix seconds; None: it was removed."""

    model_id: str | None
    at: int
    is_rollback: bool = False


@dataclass(frozen=True)
class Alias:
    """Where an alias points, and every move that it made, oldest first."""

    model_id: str
    history: tuple[AliasMove, ...]

    def list_earlier(self) -> list[str]:
        """The models that rolling back leads to, one after the other.

        A rollback undoes moves, so it is none to roll back to itself.
        """
        stack: list[str] = []
        for move in self.history:
            if move.model_id is None:
                stack.clear()
            elif move.is_rollback:
                while stack and stack[-1] != move.model_id:
                    stack.pop()
            else:
                stack.append(move.model_id)
        return stack[-2::-1]


def find_alias(aliases: Mapping[str, Alias], name: str) -> Alias:
    """Return one alias; raises `ModelNotFoundError`."""
    if name not in aliases:
        raise ModelNotFoundError(f"there is no alias {name!r}", param="name", code="not_found")
    return aliases[name]


def find_names(aliases: Mapping[str, Alias], model_id: str) -> list[str]:
    """Return the names of the aliases that point to a model."""
    return [name for name, alias in aliases.items() if alias.model_id == model_id]


class AliasBook:
    """The aliases in one JSON file; any number of processes may share it.

    A second file has the same content. Where the first is missing or damaged, as a whole or in one
    entry, the second is read in its place, and the next change writes both anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_suffix(f".copy{path.suffix}")  # `StorageLayout.aliases_copy`
        self._reported: str | None = None

    def read(self) -> dict[str, Alias]:
        """Return every alias by its name; empty before the first one is set.

        Raises `DamagedFileError` if neither file can be read.
        """
        return _list_aliases(self._read_stored().histories)

    def read_past_models(self) -> set[str]:
        """Every model that an alias points to or has pointed to."""
        histories = self._read_stored().histories.values()
        return {move.model_id for move in chain.from_iterable(histories) if move.model_id}

    @contextmanager
    def change(self) -> Iterator["AliasChange"]:
        """Let nobody else change an alias while the body decides; what it moved is written."""
        with self._take_turn():
            before = self._read_stored()
            change = AliasChange(dict(before.histories))
            yield change
            if change.histories != before.histories:
                self._write(before, _to_json(change.histories))

    def ensure_copy(self) -> None:
        """Write the second file if there is none, as after an upgrade."""
        with self._take_turn():
            if self._path.exists() and not self._copy.exists():
                stored = self._read_stored()
                if not stored.problem:
                    self._write(stored, _to_json(stored.histories))

    def _take_turn(self) -> AbstractContextManager[None]:
        return take_turn(self._path.with_name(".aliases.lock"))

    def _read_stored(self) -> "_StoredAliases":
        """Read the first file, and the second for what of it is damaged or missing."""
        stored = _read_file(self._path)
        if stored.problem or not stored.is_there:
            copy = _read_file(self._copy)
            if not (copy.is_there and not copy.is_unreadable):
                if stored.is_unreadable:
                    raise durable.DamagedFileError(
                        self._path,
                        f"{stored.problem}, and there is no intact {self._copy.name!r}; restore "
                        "one of them from a backup, or remove both to start without aliases",
                    )
            elif stored.is_unreadable or not stored.is_there:
                problem = stored.problem or "it is missing"
                stored = replace(copy, problem=problem)
            else:  # an entry that was removed since is in the copy too, so nothing comes back
                lost = stored.damaged.keys() & copy.histories.keys()
                stored.histories.update({name: copy.histories[name] for name in lost})
                for name in lost:
                    del stored.damaged[name]
        self._report(stored.problem)
        return stored

    def _write(self, before: "_StoredAliases", entries: dict[str, Any]) -> None:
        """Write both files; what could not be read is kept beside the aliases that could."""
        if before.problem and self._path.exists():
            shutil.copyfile(self._path, self._path.with_suffix(f".damaged{self._path.suffix}"))
        kept = {name: entry for name, entry in before.damaged.items() if name not in entries}
        for path in (self._path, self._copy):
            durable.write_json(path, {**kept, **entries})

    def _report(self, problem: str | None) -> None:
        """Log a problem once, not with every read: the generators read every second."""
        if problem and problem != self._reported:
            logger.error(
                "%s is damaged: %s; the content of %s is used", self._path, problem, self._copy.name
            )
        self._reported = problem


@dataclass(frozen=True)
class _StoredAliases:
    """What one file has; `problem` says what is wrong with it."""

    histories: dict[str, tuple[AliasMove, ...]] = field(default_factory=dict)
    damaged: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    is_there: bool = True
    is_unreadable: bool = False


def _read_file(path: Path) -> _StoredAliases:
    """Read every entry that is intact; raises nothing."""
    try:
        written = durable.read_json(path)
    except FileNotFoundError:
        return _StoredAliases(is_there=False)
    except (OSError, ValueError, RecursionError) as exc:
        return _StoredAliases(problem=f"it cannot be read: {exc}", is_unreadable=True)
    if not isinstance(written, dict):
        found = type(written).__name__
        problem = f"it holds a {found}; expected an object"
        return _StoredAliases(problem=problem, is_unreadable=True)
    stored = _StoredAliases()
    for name, entry in written.items():
        try:
            stored.histories[name] = _parse_history(entry)
        except (LookupError, TypeError, ValueError):
            stored.damaged[name] = entry
    if not stored.damaged:
        return stored
    names = ", ".join(repr(name) for name in sorted(stored.damaged))
    return replace(stored, problem=f"it has damaged entries: {names}")


def _parse_history(entry: Any) -> tuple[AliasMove, ...]:
    """Parse one entry; raises `LookupError`, `TypeError` or `ValueError` for a damaged one."""
    moves = tuple(
        AliasMove(move["model"], move["at"], move.get("rollback", False))
        for move in entry["history"]
    )
    are_whole = all(
        isinstance(move.model_id, str | None)
        and isinstance(move.at, int)
        and isinstance(move.is_rollback, bool)
        for move in moves
    )
    if not moves or not are_whole:
        raise ValueError("the history is empty or has a move of the wrong type")
    return moves


@dataclass
class AliasChange:
    """Aliases as they are to be written."""

    histories: dict[str, tuple[AliasMove, ...]]

    def find(self, name: str) -> Alias:
        """Return one alias; raises `ModelNotFoundError`."""
        return find_alias(_list_aliases(self.histories), name)

    def list_names(self, model_id: str) -> list[str]:
        """Names of the aliases that point to a model."""
        return sorted(find_names(_list_aliases(self.histories), model_id))

    def point(self, name: str, model_id: str) -> Alias:
        """Point an alias to a model; to where it points already adds nothing to the history."""
        history = self.histories.get(name, ())
        if not history or history[-1].model_id != model_id:
            self._add(name, AliasMove(model_id, int(time.time())))
        return self.find(name)

    def roll_back(self, name: str, is_there: Callable[[str], bool]) -> Alias:
        """Point an alias to the newest earlier model that is still there.

        Raises `ModelNotFoundError` if there is none.
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
        self.histories[name] = (*self.histories.get(name, ()), move)


def _list_aliases(histories: Mapping[str, tuple[AliasMove, ...]]) -> dict[str, Alias]:
    """Where the aliases point that have not been removed."""
    return {
        name: Alias(history[-1].model_id, history)
        for name, history in histories.items()
        if history[-1].model_id is not None
    }


def _to_json(histories: Mapping[str, tuple[AliasMove, ...]]) -> dict[str, Any]:
    return {
        name: {
            "model": history[-1].model_id,
            "history": [
                {"model": move.model_id, "at": move.at}
                | ({"rollback": True} if move.is_rollback else {})
                for move in history
            ],
        }
        for name, history in histories.items()
    }
