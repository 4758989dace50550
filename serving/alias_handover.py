"""Hand-over of aliases from model to model without interrupting requests."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from serving.errors import (
    DeadlineExceededError,
    EngineLostError,
    NoRoomError,
    OverloadedError,
    ServingError,
)
from serving.handover_outcomes import HandoverOutcomes
from serving.metrics import GeneratorMetrics
from serving.pool.loaded_models import list_used
from serving.pool.model_pool import ModelPool
from serving.store.handover_log import HandoverLog
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.durable import DamagedFileError
from storage.locks import LockedError, lock_exclusive

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Target:
    """The model that serves an alias, with the open lock that prevents its deletion."""

    model: StoredModel
    lock: IO[bytes]


class AliasWatcher:
    """Tracks which model serves each alias in this replica and performs hand-overs.

    When an alias moves, the new model is loaded and warmed up while the old model keeps serving. If
    memory does not fit both, the old model finishes its running requests and is evicted first;
    requests are queued meanwhile. If the new model fails to load, the alias stays with the old one.
    Replicas that share the file `handover_lock` hand over one at a time. Use from one event loop
    only.
    """

    def __init__(
        self,
        store: ModelStore,
        models: ModelPool,
        *,
        metrics: GeneratorMetrics,
        log: HandoverLog,
        notify_router: Callable[[StoredModel], Awaitable[None]],
        handover_lock: Path,
        poll_s: float,
    ) -> None:
        self._store = store
        self._models = models
        self._metrics = metrics
        self._outcomes = HandoverOutcomes(metrics, log)
        self._notify_router = notify_router
        self._handover_lock = handover_lock
        self._poll_s = poll_s
        self._targets: dict[str, _Target] = {}
        self._desired: dict[str, str] = {}  # the ids of the models that aliases should point to
        self._moving_to: dict[str, StoredModel] = {}  # the models that aliases are moving to
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._has_polled = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    @property
    def is_running(self) -> bool:
        """Whether the watcher still polls the aliases."""
        return not self._task.done()

    def close(self) -> None:
        """Stop watching the aliases and release the locks on their models."""
        for task in (self._task, *self._moves.values()):
            task.cancel()
        for alias in list(self._targets):
            self._forget(alias)

    async def wait_until_ready(self) -> None:
        """Wait until the model of `latest`, if there is one, is loaded."""
        await self._has_polled.wait()

    def resolve(self, name: str) -> tuple[StoredModel, str | None]:
        """Return the model that serves a name, and the name again if it is an alias.

        Raises `ModelNotFoundError`.
        """
        if (target := self._targets.get(name)) is not None:
            return target.model, name
        model = self._store.resolve(name)
        return model, name if name != model.id else None

    def follow(self, alias: str, model: StoredModel) -> None:
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
        self._targets[alias] = _Target(model, model.lock_shared())  # cannot be deleted now
        if before is not None:
            before.lock.close()
        self._pin_targets()

    def _forget(self, alias: str) -> None:
        if (target := self._targets.pop(alias, None)) is not None:
            target.lock.close()
            self._pin_targets()

    def _pin_targets(self) -> None:
        """Evict the models that aliases use or are moving to after all other models."""
        serving = [target.model for target in self._targets.values()]
        self._models.pin([*serving, *self._moving_to.values()])

    async def _watch(self) -> None:
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
            if not self._has_polled.is_set():
                await asyncio.gather(*self._moves.values())
                self._has_polled.set()
            self._models.evict_dead()
            self._metrics.record_load(
                {
                    one.stored.id: one.engine.find_load()
                    for one in self._models.list_loaded()
                    if not one.stored.is_adapter  # the load of a base is also its adapters'
                }
            )
            self._metrics.record_sizes(
                {one.stored.id: one.size_bytes for one in self._models.list_loaded()}
            )
            await asyncio.sleep(self._poll_s)

    def _start_moves(self, desired: dict[str, str]) -> None:
        self._desired = desired
        for alias in self._targets.keys() - desired.keys():
            self._forget(alias)
        for alias in {LATEST_ALIAS, *self._targets} & desired.keys() - self._moves.keys():
            target = self._targets.get(alias)
            if target is not None and target.model.id == desired[alias]:
                self._outcomes.clear_failure(alias)
            elif self._outcomes.may_try(alias, desired[alias]):
                task = asyncio.create_task(self._hand_over(alias, desired[alias]))
                self._moves[alias] = task

    async def _hand_over(self, alias: str, model_id: str) -> None:
        before = self._targets.get(alias)
        old = None if before is None else before.model
        try:
            model = self._store.get(model_id)
            if model.served_task.answers != "text":  # requests for the alias are refused now
                self._forget(alias)
                return
            # It has no requests yet: it must not be evicted before the alias points to it.
            self._moving_to[alias] = model
            self._pin_targets()
            if old is None:  # no model serves the alias, so do not wait for the lock
                has_moved = await self._move(alias, None, model)
            else:
                async with _acquire_lock(self._handover_lock, self._poll_s):
                    is_current = self._desired.get(alias) == model_id
                    has_moved = is_current and await self._move(alias, old, model)
        except (OverloadedError, DeadlineExceededError) as exc:  # retried at the next poll
            self._outcomes.record_failure(alias, "postponed", model_id, old, str(exc))
        except EngineLostError as exc:
            self._outcomes.record_loss(alias, model_id, old, str(exc))
        except Exception as exc:  # loading can fail in any way; the old model must keep serving
            logger.exception("%s cannot move to model %s", alias, model_id)
            reason = str(exc) if isinstance(exc, ServingError) else "see the server's log"
            self._outcomes.record_failure(
                alias, "refused", model_id, old, reason, retry_at=math.inf
            )
        else:
            if has_moved:
                self._outcomes.clear_failure(alias)
                self._outcomes.record(alias, "moved", model_id, old, "it answers from now on")
                await self._notify_router(model)
        finally:
            self._moving_to.pop(alias, None)
            del self._moves[alias]
            self._pin_targets()

    async def _move(self, alias: str, old: StoredModel | None, model: StoredModel) -> bool:
        others = {
            name: list_used(target.model)
            for name, target in sorted(self._targets.items())
            if name != alias
        }
        kept = {model_id for used in others.values() for model_id in used}
        try:
            await self._models.load(model, beside=True)
        except NoRoomError as exc:
            if old is None:
                raise
            if users := [name for name, used in others.items() if old.id in used]:
                raise NoRoomError(f"{exc}; and {users[0]!r} still answers with {old.id!r}") from exc
            if not self._models.can_replace(old, model, kept):
                raise
            reason = str(exc)
        else:
            self._point(alias, model)
            return True
        await asyncio.to_thread(model.verify)  # before requests are queued
        self._outcomes.record(alias, "draining", model.id, old, reason)
        has_moved = await self._models.replace(
            old, model, lambda: self._desired.get(alias) == model.id, kept
        )
        if has_moved:
            self._point(alias, model)
        return has_moved


@asynccontextmanager
async def _acquire_lock(path: Path, poll_s: float) -> AsyncIterator[None]:
    """Hold the hand-over lock; loading uses memory and CPU that other replicas need to serve.

    Polls instead of blocking in a thread, which would keep waiting after the task is cancelled.
    """
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_exclusive(path, waits=False))
                break
            except LockedError:
                await asyncio.sleep(poll_s)
        yield
