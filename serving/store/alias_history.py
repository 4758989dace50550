"""The history of one alias and its stored form; moves that no rollback needs are dropped.

An entry of `aliases.json` is `{"model", "history": [{"model", "at", "rollback"}], "past_models"}`.
Keys that a newer version added to an entry or a move are kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MAX_MOVES = 1_000
"""Most moves stored per alias; when one more is added, the oldest are dropped."""

KEPT_MOVES = 500
"""Number of newest moves that are kept when old ones are dropped."""

KEPT_STEPS = 100
"""Number of older moves that are kept in addition, as targets of further rollbacks."""

_ENTRY_KEYS = frozenset({"model", "history", "past_models"})
_MOVE_KEYS = frozenset({"model", "at", "rollback"})


@dataclass(frozen=True)
class AliasMove:
    """A move of an alias to `model_id` at `at`, in Unix seconds; None: the alias was removed.

    `more` has the keys that a newer version wrote.
    """

    model_id: str | None
    at: int
    is_rollback: bool = False
    more: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class AliasHistory:
    """The moves of an alias, oldest first.

    `past_models` are the models that occur in dropped moves only; `more` has the keys that a newer
    version wrote.
    """

    moves: tuple[AliasMove, ...] = ()
    past_models: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def model_id(self) -> str | None:
        """The model that the alias points to; None if it was removed or never set."""
        return self.moves[-1].model_id if self.moves else None

    def list_models(self) -> set[str]:
        """Return every model that the alias points to or has pointed to."""
        return {*self.past_models, *(move.model_id for move in self.moves if move.model_id)}

    def add(self, move: AliasMove) -> "AliasHistory":
        """Return the history with `move` appended; drop old moves beyond `MAX_MOVES`.

        Models of dropped moves stay in `past_models`: their ids are never reused.
        """
        moves = (*self.moves, move)
        if len(moves) <= MAX_MOVES:
            return replace(self, moves=moves)
        dropped, newest = moves[:-KEPT_MOVES], moves[-KEPT_MOVES:]
        kept = (*_find_effective_moves(dropped)[-KEPT_STEPS:], *newest)
        still_named = {each.model_id for each in kept}
        named = dict.fromkeys([*self.past_models, *(each.model_id for each in dropped)])
        past = tuple(name for name in named if name is not None and name not in still_named)
        return replace(self, moves=kept, past_models=past)


def list_earlier(moves: Iterable[AliasMove]) -> list[str]:
    """Return the targets of successive rollbacks, nearest first.

    A rollback undoes moves, so it is not itself a move that can be rolled back to.
    """
    names = [move.model_id for move in _find_effective_moves(moves)]
    return [name for name in names[-2::-1] if name is not None]


def _find_effective_moves(moves: Iterable[AliasMove]) -> list[AliasMove]:
    """Return the moves that no later rollback or removal has undone, oldest first."""
    effective: list[AliasMove] = []
    for move in moves:
        if move.model_id is None:
            effective.clear()
            continue
        if move.is_rollback:
            while effective and effective[-1].model_id != move.model_id:
                effective.pop()
        if not move.is_rollback or not effective:  # the target move of the rollback was dropped
            effective.append(move)
    return effective


def parse_history(entry: Any) -> AliasHistory:
    """Parse one entry; raises `LookupError`, `TypeError` or `ValueError` for a damaged one."""
    moves = tuple(map(_parse_move, entry["history"]))
    past_models = entry.get("past_models", [])
    if not moves:
        raise ValueError("the history is empty")
    if not isinstance(past_models, list) or not all(isinstance(name, str) for name in past_models):
        raise TypeError("'past_models' is not a list of ids")
    more = {key: entry[key] for key in entry.keys() - _ENTRY_KEYS}
    return AliasHistory(moves, tuple(past_models), more or None)


def write_history(history: AliasHistory) -> dict[str, Any]:
    """Return the entry that `parse_history` reads."""
    past = {"past_models": list(history.past_models)} if history.past_models else {}
    return {
        **(history.more or {}),
        "model": history.model_id,
        "history": [_write_move(move) for move in history.moves],
        **past,
    }


def _parse_move(move: Any) -> AliasMove:
    model_id, at = move["model"], move["at"]
    more = {key: move[key] for key in move.keys() - _MOVE_KEYS}
    parsed = AliasMove(model_id, at, move.get("rollback", False), more or None)
    is_whole = (
        isinstance(parsed.model_id, str | None)
        and isinstance(parsed.at, int)
        and isinstance(parsed.is_rollback, bool)
    )
    if not is_whole:
        raise TypeError("a move has a value of the wrong type")
    return parsed


def _write_move(move: AliasMove) -> dict[str, Any]:
    written = {**(move.more or {}), "model": move.model_id, "at": move.at}
    return {**written, "rollback": True} if move.is_rollback else written
