"""The generator: a Serve deployment that serves several models and swaps them under load."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from pydantic import Field
from ray import serve
from ray.serve.exceptions import RayServeException

from serving.alias_watcher import AliasFollower
from serving.engine.answer import TokenText, ToldToken
from serving.engine.choices import ChoicePiece, merge
from serving.engine.memory import find_default_budget
from serving.engine.remote import fork_server
from serving.errors import EngineDeadError, ServingError
from serving.metrics import RequestRecord, Telemetry
from serving.model_pool import LoadedModels
from serving.openai.chat import ChatCompletionRequest, parse_chat_request
from serving.openai.completion import CompletionRequest, parse_completion_request
from serving.openai.protocol import count_items
from serving.origin import Origin, RequestKind, describe_origin
from serving.refusals import Refusal, return_refusals, yield_refusals
from serving.request_execution import Asked
from serving.serve_log import log_to_serve
from serving.settings import GenerationSettings
from serving.store.alias_events import HandoverLog
from serving.store.model_store import ModelStore, StoredModel
from storage.layout import open_storage
from storage.privacy import keep_files_private

logger = logging.getLogger(__name__)

GENERATOR_CPUS = 0.4
"""Logical CPUs of one replica; the application subtracts them from the CPUs for fine-tuning."""


_MAX_QUICK_ITEMS = 4096
"""Requests with more items are validated in a thread; the API has already bounded their number."""


class GeneratorSettings(GenerationSettings):
    """The settings of one generator replica."""

    storage: str = Field(description="The storage root, a path.")
    max_replicas: int = Field(
        default=1, ge=1, description="How many of these there may be at once."
    )
    alias_poll_s: float = Field(
        default=1.0, gt=0, description="Seconds between two looks at where the aliases point."
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
        self._note_loaded = multiplexed(_note_loaded) if _is_served() else _note_loaded
        keep_files_private()
        layout = open_storage(settings.storage)
        fork_server.start()  # so that it imports its libraries while this process imports its own
        max_bytes = settings.max_loaded_bytes or find_default_budget(settings.max_replicas)
        self._models = LoadedModels(settings.engine, settings.max_loaded_models, max_bytes)
        self._telemetry = Telemetry(log_texts=settings.log_texts)
        self._follower = AliasFollower(
            ModelStore(layout),
            self._models,
            telemetry=self._telemetry,
            log=HandoverLog(layout.store.handovers, settings.max_handover_log_bytes),
            tell_router=self._tell_router,
            turn=layout.store.handover_lock(socket.gethostname()),
            poll_s=settings.alias_poll_s,
        )

    def __del__(self) -> None:
        # Serve calls this when it stops a replica, after the last request.
        self.close()

    def close(self) -> None:
        """Stop every engine; block for at most one forward pass."""
        if hasattr(self, "_follower"):
            self._models.close()
            self._follower.close()

    async def stream(
        self, kind: RequestKind, body: dict[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        """Stream the answers to a request; `request_id` is for the log.

        Yields `{"origin", "pieces"}`. The first origin describes the model, `{"model_id", "run_id",
        "checkpoint", "dataset_sha256", "system_fingerprint"}`, None where unknown; later origins
        are None. Pieces are `{"index", "text", "finish_reason", "num_prompt_tokens",
        "num_completion_tokens", "tokens"}`; only the last piece of each answer has a finish reason
        and counts. Raises a `ServingError`; before the first item if the request is invalid or
        there is no capacity.
        """
        with self._telemetry.follow(kind, request_id, body) as record:
            async with self._open(kind, body, record) as asked:
                batches = merge(asked.start(in_pieces=True))
                async with aclosing(batches):
                    origin: Origin | None = describe_origin(asked.model)
                    async for batch in batches:
                        record.see_pieces()
                        for one in batch:
                            _note(record, one)
                        yield {"origin": origin, "pieces": [_to_dict(piece) for piece in batch]}
                        origin = None

    async def answer(
        self, kind: RequestKind, body: dict[str, Any], request_id: str
    ) -> dict[str, Any]:
        """Return the whole answers to a request; `request_id` is for the log.

        Returns `{"origin", "choices", "num_prompt_tokens"}`: the first origin of `stream`, one
        piece per answer, and the number of tokens of all prompts. Raises a `ServingError`.
        """
        with self._telemetry.follow(kind, request_id, body) as record:
            async with self._open(kind, body, record) as asked:
                answers = await asked.answer()
                origin = describe_origin(asked.model)
            choices = [ChoicePiece(index, answer) for index, answer in enumerate(answers)]
            for choice in choices:
                _note(record, choice)
        return {
            "origin": origin,
            "choices": [_to_dict(choice) for choice in choices],
            "num_prompt_tokens": asked.num_prompt_tokens,
        }

    @asynccontextmanager
    async def _open(
        self, kind: RequestKind, body: dict[str, Any], record: RequestRecord
    ) -> AsyncIterator[Asked]:
        """Validate a request and lease the engine of the model that it names."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.engine.request_timeout_s
        request = await _parse(kind, body)
        model, alias = await self._choose(request.model, deadline)
        record.model_id = model.id
        async with self._models.lend(model, timeout_s=deadline - loop.time()) as loaded:
            if alias is not None:
                self._follower.start_with(alias, model)
            await self._tell_router(model)
            asked = await Asked.prepare(request, loaded.stored, loaded.engine, deadline)
            record.num_prompt_tokens = asked.num_prompt_tokens
            yield asked

    async def loaded_models(self) -> list[dict[str, Any]]:
        """List the loaded models: `{"model_id", "aliases", "num_active", "context_length"}`."""
        return [
            {
                "model_id": loaded.stored.id,
                "aliases": self._follower.list_aliases(loaded.stored.id),
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
        await self._follower.wait_until_ready()
        if not self._follower.is_following:
            raise EngineDeadError("the replica no longer follows the aliases")

    async def _choose(self, name: str, deadline: float) -> tuple[StoredModel, str | None]:
        """Return the model for a name, and the alias if it is one; wait while it is draining."""
        loop = asyncio.get_running_loop()
        while True:
            model, alias = self._follower.resolve(name)
            timeout_s = deadline - loop.time()
            if not await self._models.wait_while_draining(model, timeout_s=timeout_s):
                return model, alias

    async def _tell_router(self, model: StoredModel) -> None:
        await self._note_loaded(model.id)


async def _parse(
    kind: RequestKind, body: dict[str, Any]
) -> ChatCompletionRequest | CompletionRequest:
    """Validate a request, in a thread if it is large."""

    def parse() -> ChatCompletionRequest | CompletionRequest:
        return parse_chat_request(body) if kind == "chat" else parse_completion_request(body)

    return await asyncio.to_thread(parse) if count_items(body) > _MAX_QUICK_ITEMS else parse()


async def _note_loaded(model_id: str) -> str:
    return model_id


def _is_served() -> bool:
    try:
        serve.get_replica_context()
    except RayServeException:
        return False
    return True


def _token_to_dict(told: ToldToken) -> dict[str, Any]:
    return {
        "token": _text_to_dict(told.token),
        "logprob": told.logprob,
        "top": [(_text_to_dict(text), logprob) for text, logprob in told.top],
        "is_end": told.is_end,
    }


def _text_to_dict(text: TokenText) -> dict[str, Any]:
    return {"text": text.text, "utf8": text.utf8}


def _note(record: RequestRecord, choice: ChoicePiece) -> None:
    record.see_text(choice.index, choice.piece.text, choice.piece.num_completion_tokens)


def _to_dict(choice: ChoicePiece) -> dict[str, Any]:
    piece = choice.piece
    return {
        "index": choice.index,
        "text": piece.text,
        "finish_reason": piece.finish_reason,
        "num_prompt_tokens": piece.num_prompt_tokens,
        "num_completion_tokens": piece.num_completion_tokens,
        "tokens": [_token_to_dict(token) for token in piece.tokens],
    }


class GeneratorDeployment(GeneratorReplica):
    """The replica behind a Serve handle; returns refused requests as a `Refusal`."""

    async def stream(
        self, kind: RequestKind, body: dict[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        """Stream the answers to a request; the last item may be a `Refusal`."""
        items = yield_refusals(super().stream(kind, body, request_id), ServingError)
        async with aclosing(items):
            async for item in items:
                yield item

    async def answer(  # type: ignore[override] # only callers of the handle see a `Refusal`
        self, kind: RequestKind, body: dict[str, Any], request_id: str
    ) -> dict[str, Any] | Refusal:
        """Return the whole answers to a request, or a `Refusal`."""
        return await return_refusals(ServingError)(super().answer)(kind, body, request_id)


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
