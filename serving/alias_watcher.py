"""Hand-over of aliases from model to model without interrupting requests."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from serving.errors import (
    DeadlineExceededError,
    EngineLostError,
    OverloadedError,
    ServingError,
)
from serving.metrics import Telemetry
from serving.model_pool import LoadedModels
from serving.store.alias_events import HandoverEvent, HandoverLog, Outcome
from serving.store.model_store import LATEST_ALIAS, ModelStore, StoredModel
from storage.durable import DamagedFileError
from storage.locks import LockedError, lock_exclusive

logger = logging.getLogger(__name__)

_MAX_LOST = 6
_LOST_DELAY_S = 5.0  # before the second attempt; doubles before each further attempt


@dataclass(frozen=True)
class _Target:
    """The model that serves an alias, with the open lock that prevents its deletion."""

    model: StoredModel
    held: IO[bytes]


@dataclass(frozen=True)
class _Failure:
    """A failed move of an alias to a model; `retry_at` is a monotonic time in seconds."""

    model_id: str
    outcome: Outcome
    num_lost: int
    """How many times the process that loads the model has ended."""
    retry_at: float


class AliasFollower:
    """Tracks which model serves each alias in this replica and performs hand-overs.

    When an alias moves, the new model is loaded and warmed up while the old model keeps serving. If
    memory does not fit both, the old model finishes its running requests and is evicted first;
    requests are queued meanwhile. If the new model fails to load, the alias stays with the old one.
    Replicas that share the lock file `turn` hand over one at a time. Use from one event loop only.
    """

    def __init__(
        self,
        store: ModelStore,
        models: LoadedModels,
        *,
        telemetry: Telemetry,
        log: HandoverLog,
        tell_router: Callable[[StoredModel], Awaitable[None]],
        turn: Path,
        poll_s: float,
    ) -> None:
        self._store = store
        self._models = models
        self._telemetry = telemetry
        self._log = log
        self._tell_router = tell_router
        self._turn = turn
        self._poll_s = poll_s
        self._targets: dict[str, _Target] = {}
        self._wanted: dict[str, str] = {}  # the ids of the models that aliases should point to
        self._coming: dict[str, str] = {}  # the ids of the models that aliases are moving to
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, _Failure] = {}
        self._has_looked = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_following())

    @property
    def is_following(self) -> bool:
        """Whether the follower still polls the aliases."""
        return not self._task.done()

    def close(self) -> None:
        """Stop following aliases and release the locks on their models."""
        for task in (self._task, *self._moves.values()):
            task.cancel()
        for alias in list(self._targets):
            self._forget(alias)

    async def wait_until_ready(self) -> None:
        """Wait until the model of `latest`, if there is one, is loaded."""
        await self._has_looked.wait()

    def resolve(self, name: str) -> tuple[StoredModel, str | None]:
        """Return the model that serves a name, and the name again if it is an alias.

        Raises `ModelNotFoundError`.
        """
        if (target := self._targets.get(name)) is not None:
            return target.model, name
        model = self._store.resolve(name)
        return model, name if name != model.id else None

    def start_with(self, alias: str, model: StoredModel) -> None:
        """Follow an alias from now on; the loaded `model` serves it."""
        if alias not in self._targets:
            self._point(alias, model)

    def list_aliases(self, model_id: str) -> list[str]:
        """List the aliases that a model serves."""
        return sorted(
            alias for alias, target in self._targets.items() if target.model.id == model_id
        )

    def _point(self, alias: str, model: StoredModel) -> None:
        before = self._targets.get(alias)
        self._targets[alias] = _Target(model, model.hold())  # a serving model cannot be deleted
        if before is not None:
            before.held.close()
        self._keep_targets()

    def _forget(self, alias: str) -> None:
        if (target := self._targets.pop(alias, None)) is not None:
            target.held.close()
            self._keep_targets()

    def _keep_targets(self) -> None:
        """Evict the models that aliases use or are moving to after all other models."""
        answering = {target.model.id for target in self._targets.values()}
        self._models.keep({*answering, *self._coming.values()})

    async def _keep_following(self) -> None:
        unreadable = ""
        while True:
            try:
                aliases = await asyncio.to_thread(self._store.read_aliases)
            except (OSError, DamagedFileError) as exc:
                if str(exc) != unreadable:  # log a problem once, not at every poll
                    unreadable = str(exc)
                    logger.exception("the aliases cannot be read; they stay as they were")
            else:
                unreadable = ""
                self._start_moves({name: alias.model_id for name, alias in aliases.items()})
            if not self._has_looked.is_set():
                await asyncio.gather(*self._moves.values())
                self._has_looked.set()
            self._models.drop_gone()
            self._telemetry.show_load(
                {one.stored.id: one.engine.find_load() for one in self._models.list_loaded()}
            )
            await asyncio.sleep(self._poll_s)

    def _start_moves(self, wanted: dict[str, str]) -> None:
        self._wanted = wanted
        for alias in self._targets.keys() - wanted.keys():
            self._forget(alias)
        for alias in {LATEST_ALIAS, *self._targets} & wanted.keys() - self._moves.keys():
            target = self._targets.get(alias)
            if target is not None and target.model.id == wanted[alias]:
                self._failed.pop(alias, None)
            elif self._may_try(alias, wanted[alias]):
                task = asyncio.create_task(self._follow(alias, wanted[alias]))
                self._moves[alias] = task

    def _may_try(self, alias: str, model_id: str) -> bool:
        failure = self._failed.get(alias)
        if failure is None or failure.model_id != model_id:
            return True
        return time.monotonic() >= failure.retry_at

    async def _follow(self, alias: str, model_id: str) -> None:
        # The new model has no requests yet: it must not be evicted before the alias points to it.
        self._coming[alias] = model_id
        self._keep_targets()
        before = self._targets.get(alias)
        old = None if before is None else before.model
        try:
            model = self._store.get(model_id)
            if old is None:  # no model serves the alias, so do not wait for the lock
                has_moved = await self._move(alias, None, model)
            else:
                async with self._take_turn():
                    is_wanted = self._wanted.get(alias) == model_id
                    has_moved = is_wanted and await self._move(alias, old, model)
        except (OverloadedError, DeadlineExceededError) as exc:  # retried at the next poll
            self._note_failure(alias, "postponed", model_id, old, str(exc))
        except EngineLostError as exc:
            self._note_loss(alias, model_id, old, str(exc))
        except Exception as exc:  # loading can fail in any way; the old model must keep serving
            logger.exception("%s cannot move to model %s", alias, model_id)
            reason = str(exc) if isinstance(exc, ServingError) else "see the server's log"
            self._note_failure(alias, "refused", model_id, old, reason, retry_at=math.inf)
        else:
            if has_moved:
                self._failed.pop(alias, None)
                self._note(alias, "moved", model_id, old, "it answers from now on")
                await self._tell_router(model)
        finally:
            del self._coming[alias], self._moves[alias]
            self._keep_targets()

    @asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        """Hold the hand-over lock; loading uses memory and CPU that other replicas need to serve.

        Polls instead of blocking in a thread, which would keep waiting after the task is cancelled.
        """
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(lock_exclusive(self._turn, waits=False))
                    break
                except LockedError:
                    await asyncio.sleep(self._poll_s)
            yield

    async def _move(self, alias: str, old: StoredModel | None, model: StoredModel) -> bool:
        try:
            await self._models.load(model, beside=True)
        except OverloadedError as exc:
            if old is None or not self._models.can_replace(old, model):
                raise
            reason = str(exc)
        else:
            self._point(alias, model)
            return True
        if others := [name for name in self.list_aliases(old.id) if name != alias]:
            raise OverloadedError(f"{reason}; and {others[0]!r} still answers with {old.id!r}")
        await asyncio.to_thread(model.verify)  # before requests are queued
        self._note(alias, "draining", model.id, old, reason)
        has_moved = await self._models.replace(
            old, model, lambda: self._wanted.get(alias) == model.id
        )
        if has_moved:
            self._point(alias, model)
        return has_moved

    def _note_loss(self, alias: str, model_id: str, old: StoredModel | None, reason: str) -> None:
        """Schedule a retry with backoff: the model may or may not be the cause of the loss."""
        before = self._failed.get(alias)
        num_lost = 1 + (before.num_lost if before and before.model_id == model_id else 0)
        outcome: Outcome = "postponed" if num_lost < _MAX_LOST else "refused"
        delay_s = _LOST_DELAY_S * 2 ** (num_lost - 1) if num_lost < _MAX_LOST else math.inf
        retry_at = time.monotonic() + delay_s
        self._note_failure(
            alias, outcome, model_id, old, reason, num_lost=num_lost, retry_at=retry_at
        )

    def _note_failure(
        self,
        alias: str,
        outcome: Outcome,
        model_id: str,
        old: StoredModel | None,
        reason: str,
        *,
        num_lost: int = 0,
        retry_at: float = 0.0,
    ) -> None:
        before = self._failed.get(alias)
        if before is None or (before.model_id, before.outcome) != (model_id, outcome):
            stays = "no model" if old is None else f"model {old.id!r}"
            self._note(alias, outcome, model_id, old, f"it stays with {stays}: {reason}")
        self._failed[alias] = _Failure(model_id, outcome, num_lost, retry_at)

    def _note(
        self, alias: str, outcome: Outcome, model_id: str, old: StoredModel | None, message: str
    ) -> None:
        before = None if old is None else old.id
        logger.info("%s, model %s (before: %s): %s: %s", alias, model_id, before, outcome, message)
        if old is None and outcome == "moved":  # the first load, not a hand-over
            return
        self._telemetry.note_handover(alias, outcome)
        try:
            self._log.add(HandoverEvent(alias, outcome, model_id, before, message))
        except OSError:
            logger.exception("the event of a hand-over cannot be written")
