"""The Serve deployment that answers chats: several models at a time, swapped under load."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from serving.engine import Engine, EngineSettings
from serving.errors import EngineDeadError
from serving.loaded_models import LoadedModels
from serving.model_store import LATEST_ALIAS, ModelStore, StoredModel
from serving.protocol import ChatCompletionRequest, parse_chat_request
from serving.sampling import Sampling
from storage.layout import open_storage

logger = logging.getLogger(__name__)

GENERATOR_CPUS = 0.4
"""Logical CPUs of one replica; the application subtracts them from what a fine-tune may have."""


class GeneratorSettings(BaseModel):
    """What one replica of the generator works with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    storage: str = Field(description="The storage root, a path.")
    engine: EngineSettings = Field(
        default_factory=EngineSettings, description="How each model's engine uses the machine."
    )
    max_loaded_models: int = Field(
        default=3, ge=1, description="Models held in memory; one more while an alias moves."
    )
    alias_poll_s: float = Field(
        default=1.0, gt=0, description="Seconds between two looks at where the aliases point."
    )


@dataclass(frozen=True)
class _Target:
    """The model that answers for an alias, held while it does."""

    model: StoredModel
    held: IO[bytes]


class GeneratorReplica:
    """Answers chats with whatever model each one names.

    Must be made inside a running event loop, and closed. When an alias moves, the new model is
    loaded and warmed up beside the old one, which answers until then and is put out when idle; a
    new model that does not load changes nothing.
    """

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings
        self._store = ModelStore(open_storage(settings.storage))
        self._models = LoadedModels(settings.engine, settings.max_loaded_models)
        # The model that answers for an alias now, and the one that it could not be moved to.
        self._targets: dict[str, _Target] = {}
        self._refused: dict[str, str] = {}
        self._has_looked = asyncio.Event()
        self._following = asyncio.get_running_loop().create_task(self._follow_aliases())

    def __del__(self) -> None:
        # Serve calls this when it stops a replica, after the last request.
        self.close()

    def close(self) -> None:
        """Stop every engine; blocks for as long as one forward pass."""
        if hasattr(self, "_following"):
            self._following.cancel()
            self._models.close()
            for alias in list(self._targets):
                self._forget(alias)

    async def chat(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Answer the body of a chat completion.

        Yields first what answers: `{"model_id", "run_id", "checkpoint", "dataset_sha256",
        "system_fingerprint"}`, None where unknown; then pieces: `{"text", "finish_reason",
        "num_prompt_tokens", "num_completion_tokens"}`, of which only the last has a finish reason
        and counts. Raises a `ServingError`, and before the first item where the request is to
        blame or there is no room.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.engine.request_timeout_s
        parsed = parse_chat_request(request)
        model, alias = self._resolve(parsed.model)
        async with self._models.lend(model, timeout_s=deadline - loop.time()) as loaded:
            if alias is not None and alias not in self._targets:
                self._point(alias, model)
            engine = loaded.engine
            prompt_ids = await asyncio.to_thread(engine.encode_chat, parsed.to_template_messages())
            pieces = engine.generate(
                prompt_ids, _choose_sampling(parsed, engine), timeout_s=deadline - loop.time()
            )
            async with aclosing(pieces):
                # Whatever is wrong with a request shows before its first piece.
                first = await anext(pieces)
                yield describe_origin(model)
                yield asdict(first)
                async for piece in pieces:
                    yield asdict(piece)

    async def loaded_models(self) -> list[dict[str, Any]]:
        """List `{"model_id", "aliases", "num_active", "context_length"}` of what is in memory."""
        return [
            {
                "model_id": loaded.stored.id,
                "aliases": sorted(
                    alias
                    for alias, target in self._targets.items()
                    if target.model.id == loaded.stored.id
                ),
                "num_active": loaded.engine.num_active,
                "context_length": loaded.engine.context_length,
            }
            for loaded in self._models.list_loaded()
        ]

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if this replica should be replaced.

        The first call, which Serve makes before it sends requests, waits until the model of
        `latest` is loaded.
        """
        await self._has_looked.wait()
        for loaded in self._models.list_loaded():
            if not loaded.engine.is_healthy():
                raise EngineDeadError(f"the engine of model {loaded.stored.id!r} has stopped")
        if self._following.done():
            raise EngineDeadError("the replica no longer follows the aliases")

    def _resolve(self, name: str) -> tuple[StoredModel, str | None]:
        """Return the model that answers for a name, and the alias if the name is one."""
        target = self._targets.get(name)
        if target is not None:
            return target.model, name
        model = self._store.resolve(name)
        return model, name if name != model.id else None

    def _point(self, alias: str, model: StoredModel) -> None:
        before = self._targets.get(alias)
        self._targets[alias] = _Target(model, model.hold())  # it answers, so nobody may delete it
        if before is not None:
            before.held.close()
        self._keep_targets()

    def _forget(self, alias: str) -> None:
        if (target := self._targets.pop(alias, None)) is not None:
            target.held.close()
            self._keep_targets()

    def _keep_targets(self, coming: str | None = None) -> None:
        """Put out last what aliases answer with, and what one of them is moving to."""
        kept = {target.model.id for target in self._targets.values()}
        self._models.keep(kept if coming is None else {*kept, coming})

    async def _follow_aliases(self) -> None:
        while True:
            try:
                aliases = await asyncio.to_thread(self._store.read_aliases)
            except (OSError, ValueError, KeyError):
                logger.exception("the aliases cannot be read; they stay as they were")
            else:
                for name in self._targets.keys() - aliases.keys():
                    self._forget(name)
                for name in {LATEST_ALIAS, *self._targets} & aliases.keys():
                    await self._follow(name, aliases[name].model_id)
            self._models.drop_deleted()
            self._has_looked.set()
            await asyncio.sleep(self._settings.alias_poll_s)

    async def _follow(self, alias: str, model_id: str) -> None:
        old = self._targets.get(alias)
        if old is not None and old.model.id == model_id:
            self._refused.pop(alias, None)
            return
        if self._refused.get(alias) == model_id:
            return
        # Nobody uses the new model yet: it must not be put out before the alias points to it.
        self._keep_targets(coming=model_id)
        try:
            model = self._store.get(model_id)
            await self._models.load(model, beside=True)
            self._point(alias, model)
        except Exception:  # a model file can fail in any way, and the old model must go on
            logger.exception(
                "%s cannot move to model %s and stays with %s",
                alias,
                model_id,
                old.model.id if old is not None else "none",
            )
            self._refused[alias] = model_id
            self._keep_targets()
            return
        self._refused.pop(alias, None)
        logger.info("%s is model %s now", alias, model_id)


def describe_origin(model: StoredModel) -> dict[str, str | None]:
    """Name what an answer comes from; None where the model's lineage does not say."""
    lineage = model.lineage
    step = lineage.checkpoint_step
    return {
        "model_id": model.id,
        "run_id": lineage.run_id,
        "checkpoint": None if step is None else f"step-{step}",
        "dataset_sha256": lineage.data.sha256 if lineage.data else None,
        "system_fingerprint": model.fingerprint,
    }


def _choose_sampling(request: ChatCompletionRequest, engine: Engine) -> Sampling:
    return engine.fill_sampling(
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop,
    )


Generator = serve.deployment(
    name="Generator",
    # The engine refuses with a reason of its own; these stand behind it.
    max_ongoing_requests=128,
    max_queued_requests=128,
    graceful_shutdown_wait_loop_s=1.0,
    graceful_shutdown_timeout_s=150.0,
    health_check_period_s=5.0,
    health_check_timeout_s=30.0,
    ray_actor_options={"num_cpus": GENERATOR_CPUS},
)(GeneratorReplica)
"""The deployment: `Generator.bind(GeneratorSettings(...))`."""
