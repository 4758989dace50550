"""Names that move from model to model, with every move that they made."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from serving.errors import ModelNotFoundError
from storage import durable
from storage.locks import take_turn


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
    """The aliases in one JSON file; any number of processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Alias]:
        """Return every alias by its name; empty before the first one is set."""
        return _list_aliases(self._read_histories())

    def read_past_models(self) -> set[str]:
        """Every model that an alias points to or has pointed to."""
        histories = self._read_histories().values()
        return {move.model_id for move in chain.from_iterable(histories) if move.model_id}

    @contextmanager
    def change(self) -> Iterator["AliasChange"]:
        """Let nobody else change an alias while the body decides; what it moved is written."""
        with take_turn(self._path.with_name(".aliases.lock")):
            before = self._read_histories()
            change = AliasChange(dict(before))
            yield change
            if change.histories != before:
                durable.write_json(self._path, _to_json(change.histories))

    def _read_histories(self) -> dict[str, tuple[AliasMove, ...]]:
        try:
            written = durable.read_json(self._path)
        except FileNotFoundError:
            return {}
        return {
            name: tuple(
                AliasMove(move["model"], move["at"], move.get("rollback", False))
                for move in entry["history"]
            )
            for name, entry in written.items()
        }


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
