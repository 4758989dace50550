"""The generator: a Serve deployment that serves several models and swaps them under load."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from pydantic import Field
from ray import serve
from ray.serve.exceptions import RayServeException

from serving.alias_handover import AliasWatcher
from serving.engine.remote import fork_server
from serving.errors import EngineDeadError, ServingError
from serving.loading.memory import find_default_budget
from serving.metrics import GeneratorMetrics, RequestRecord
from serving.pool.model_pool import ModelPool
from serving.refusals import Refusal, make_refusal
from serving.request_execution import RequestExecution, merge_answers
from serving.serve_log import log_to_serve
from serving.settings import GenerationSettings
from serving.store.handover_log import HandoverLog
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from serving.wire import (
    AnswerOrigin,
    LoadedModelStatus,
    Piece,
    StreamItem,
    TextRequest,
    WholeAnswer,
    describe_origin,
)
from storage.layout import open_storage
from storage.privacy import keep_files_private

GENERATOR_CPUS = 0.4
"""Logical CPUs of one replica; the application subtracts them from the CPUs for fine-tuning."""


class GeneratorSettings(GenerationSettings):
    """The settings of one generator replica."""

    storage: str = Field(description="The storage root, a path.")
    max_replicas: int = Field(
        default=1, ge=1, description="How many of these there may be at once."
    )
    alias_poll_s: float = Field(
        default=1.0, gt=0, description="Seconds between two polls of the aliases."
    )


class GeneratorReplica:
    """Serves each request with the model that it names.

    Create it inside a running event loop, and close it.
    """

    def __init__(self, settings: GeneratorSettings) -> None:
        log_to_serve()
        self._settings = settings
        # Serve's router prefers this replica for the models that it used most recently.
        multiplexed = serve.multiplexed(max_num_models_per_replica=settings.max_loaded_models)
        self._report_model = multiplexed(_report_model) if _is_served() else _report_model
        keep_files_private()
        layout = open_storage(settings.storage)
        fork_server.start()  # so that it imports its libraries while this process imports its own
        max_bytes = settings.max_loaded_bytes or find_default_budget(settings.max_replicas)
        store = ModelStore(layout)
        self._models = ModelPool(
            settings.engine, settings.max_loaded_models, max_bytes, store.get_base
        )
        self._metrics = GeneratorMetrics(log_texts=settings.log_texts)
        self._watcher = AliasWatcher(
            store,
            self._models,
            metrics=self._metrics,
            log=HandoverLog(layout.store.handovers, settings.max_handover_log_bytes),
            notify_router=self._notify_router,
            handover_lock=layout.store.handover_lock(socket.gethostname()),
            poll_s=settings.alias_poll_s,
        )

    def close(self) -> None:
        """Stop every engine; block for at most one forward pass."""
        self._models.close()
        self._watcher.close()

    async def stream(self, request: TextRequest) -> AsyncGenerator[StreamItem, None]:
        """Stream the answers to a request.

        Raises a `ServingError`; before the first item if the model does not accept the request or
        there is no capacity.
        """
        with self._metrics.observe_request(request) as record:
            async with self._open(request, record) as execution:
                origin: AnswerOrigin | None = describe_origin(execution.model)
                answers = execution.start(in_pieces=True)
                arriving: AsyncGenerator[Piece | tuple[Piece, ...], None] = (
                    answers[0] if len(answers) == 1 else merge_answers(answers)
                )
                async with aclosing(arriving):
                    async for arrived in arriving:
                        pieces = (arrived,) if isinstance(arrived, Piece) else arrived
                        record.record_streamed(pieces)
                        yield pieces, origin
                        origin = None

    async def answer(self, request: TextRequest) -> WholeAnswer:
        """Return the whole answers to a request. Raises a `ServingError`."""
        with self._metrics.observe_request(request) as record:
            async with self._open(request, record) as execution:
                choices = tuple(await execution.answer())
                origin = describe_origin(execution.model)
            record.record_pieces(choices)
        return WholeAnswer(origin, choices, execution.num_prompt_tokens)

    @asynccontextmanager
    async def _open(
        self, request: TextRequest, record: RequestRecord
    ) -> AsyncIterator[RequestExecution]:
        """Lease the engine of the model that a request names, and encode the prompts."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.engine.request_timeout_s
        model, alias = await self._resolve(request.content.model, deadline)
        record.model_id = model.id
        async with self._models.lease(model, timeout_s=deadline - loop.time()) as loaded:
            if alias is not None:
                self._watcher.follow(alias, model)
            await self._notify_router(model)
            execution = await RequestExecution.prepare(
                request.content, loaded.stored, loaded.engine, deadline
            )
            record.num_prompt_tokens = execution.num_prompt_tokens
            record.num_answers = execution.num_answers
            yield execution

    async def loaded_models(self) -> list[LoadedModelStatus]:
        """List the loaded models."""
        return [
            LoadedModelStatus(
                model_id=loaded.stored.id,
                aliases=tuple(self._watcher.list_aliases(loaded.stored.id)),
                num_active=self._models.count_active(loaded),
                context_length=loaded.engine.context_length,
            )
            for loaded in self._models.list_loaded()
        ]

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if this replica should be replaced.

        The first call, which Serve makes before it sends requests, waits until the model of
        `latest` is loaded.
        """
        await self._watcher.wait_until_ready()
        if not self._watcher.is_running:
            raise EngineDeadError("the replica no longer follows the aliases")

    async def _resolve(self, name: str, deadline: float) -> tuple[StoredModel, str | None]:
        """Return the model for a name, and the alias if it is one; wait while it is draining."""
        loop = asyncio.get_running_loop()
        while True:
            model, alias = self._watcher.resolve(name)
            model.check_answers("text")
            timeout_s = deadline - loop.time()
            if not await self._models.wait_while_draining(model, timeout_s=timeout_s):
                return model, alias

    async def _notify_router(self, model: StoredModel) -> None:
        await self._report_model(model.id)


async def _report_model(model_id: str) -> str:
    """Report to Serve's router, which wraps this function, that a replica has a model."""
    return model_id


def _is_served() -> bool:
    try:
        serve.get_replica_context()
    except RayServeException:
        return False
    return True


class GeneratorDeployment:
    """A replica behind a Serve handle; returns refused requests as a `Refusal`."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self._replica = GeneratorReplica(settings)

    def __del__(self) -> None:
        # Serve calls this when it stops a replica, after the last request.
        self.close()

    async def stream(self, request: TextRequest) -> AsyncGenerator[StreamItem | Refusal, None]:
        """Stream the answers to a request; the last item may be a `Refusal`."""
        async with aclosing(self._replica.stream(request)) as items:
            try:
                async for item in items:
                    yield item
            except ServingError as exc:
                yield make_refusal(exc)

    async def answer(self, request: TextRequest) -> WholeAnswer | Refusal:
        """Return the whole answers to a request, or a `Refusal`."""
        try:
            return await self._replica.answer(request)
        except ServingError as exc:
            return make_refusal(exc)

    async def loaded_models(self) -> list[LoadedModelStatus]:
        """List the loaded models."""
        return await self._replica.loaded_models()

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if this replica should be replaced; see `GeneratorReplica`."""
        await self._replica.check_health()

    def close(self) -> None:
        """Stop every engine; block for at most one forward pass."""
        if hasattr(self, "_replica"):  # it exists unless the settings could not be applied
            self._replica.close()


Generator = serve.deployment(
    name="Generator",
    # The engine rejects excess requests with a specific reason; these limits are a second line.
    max_ongoing_requests=128,
    max_queued_requests=128,
    graceful_shutdown_wait_loop_s=1.0,
    graceful_shutdown_timeout_s=150.0,
    health_check_period_s=5.0,
    health_check_timeout_s=30.0,
    ray_actor_options={"num_cpus": GENERATOR_CPUS},
)(GeneratorDeployment)
"""The deployment: `Generator.bind(GeneratorSettings(...))`."""
