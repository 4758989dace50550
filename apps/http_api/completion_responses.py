"""Responses to text requests: headers with the model's origin, and streamed chunks."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from fastapi.responses import JSONResponse, Response, StreamingResponse

from apps.access.exchange import count_tokens
from apps.errors import is_expected, to_response
from apps.http_api.dependencies import TextGenerator
from apps.sse import write_event
from apps.upstream.proxy import UpstreamProxy
from serving.openai.chunks import StreamUsage
from serving.openai.responses import AnswerHead, JsonObject, build_usage
from serving.wire import AnswerOrigin, Piece, StreamItem, ValidRequest
from storage.layout import new_id

logger = logging.getLogger(__name__)

_MAX_HEADER_CHARACTERS = 200

Item = TypeVar("Item")
_ItemT_contra = TypeVar("_ItemT_contra", contravariant=True)


class AnswerChunks(Protocol):
    """Builds the chunks of one streamed response from its pieces."""

    usage: StreamUsage

    def build(self, pieces: Sequence[Piece]) -> list[JsonObject]:
        """Build the chunks of some pieces."""

    def finish(self) -> list[JsonObject]:
        """Build the chunks that follow the last piece."""


BuildAnswer = Callable[[AnswerHead, Sequence[Piece], dict[str, int]], JsonObject]
BuildChunks = Callable[[AnswerHead], AnswerChunks]


async def respond(
    text: TextGenerator,
    request: ValidRequest,
    body: Mapping[str, Any],
    *,
    id_prefix: str,
    build: BuildAnswer,
    build_chunks: BuildChunks,
) -> Response:
    """Respond to a text request, whole or as events; headers contain the model's origin.

    `body` is the client's own, for the request log.
    """
    answer_id = new_id(id_prefix)
    if request.stream:
        items = text.stream(request, body, answer_id)
        first = await anext(items)  # errors up to here are plain HTTP errors
        _, origin = first
        assert origin is not None, "the first item has the origin"
        chunks = build_chunks(_make_head(answer_id, origin))
        return _stream(first, items, _CountedChunks(chunks), origin)
    answer = await text.answer(request, body, answer_id)
    num_completion_tokens = sum(choice.num_completion_tokens for choice in answer.choices)
    usage = build_usage(answer.num_prompt_tokens, num_completion_tokens)
    count_tokens(usage["total_tokens"], is_exact=True)
    content = build(_make_head(answer_id, answer.origin), answer.choices, usage)
    return JSONResponse(content, headers=describe_origin_headers(answer.origin))


async def respond_relayed(relay: UpstreamProxy, path: str, body: JsonObject) -> Response:
    """Relay a text request to an upstream; stream its response if the upstream does."""
    origin, answer = await relay.ask(path, body)
    if isinstance(answer, dict):
        _count_usage(answer)
        return JSONResponse(answer, headers=describe_origin_headers(origin))
    first = await anext(answer, None)  # errors up to here are plain HTTP errors
    return _stream(first, answer, _RelayedChunks(), origin)


class _ChunkSource(Protocol[_ItemT_contra]):
    """Converts the items of a stream to chunks, and counts their tokens."""

    def convert(self, item: _ItemT_contra) -> list[JsonObject]:
        """Return the chunks of one item."""

    def finish(self) -> list[JsonObject]:
        """Return the chunks that follow the last item."""


class _CountedChunks:
    """The chunks of a generator's stream: one token per piece, and the exact number at the end."""

    def __init__(self, chunks: AnswerChunks) -> None:
        self._chunks = chunks

    def convert(self, item: StreamItem) -> list[JsonObject]:
        pieces, _ = item
        count_tokens(len(pieces))
        return self._chunks.build(pieces)

    def finish(self) -> list[JsonObject]:
        count_tokens(self._chunks.usage.build()["total_tokens"], is_exact=True)
        return self._chunks.finish()


class _RelayedChunks:
    """The chunks of an upstream's stream: one token each, unless they report a number."""

    def convert(self, item: JsonObject) -> list[JsonObject]:
        if not _count_usage(item):
            count_tokens(1)
        return [item]

    def finish(self) -> list[JsonObject]:
        return []


def _count_usage(answer: Mapping[str, Any]) -> bool:
    """Count the tokens that a response or chunk reports; return whether it reports any."""
    usage = answer.get("usage")
    if not isinstance(usage, dict) or not isinstance(usage.get("total_tokens"), int):
        return False
    count_tokens(usage["total_tokens"], is_exact=True)
    return True


def _make_head(answer_id: str, origin: AnswerOrigin) -> AnswerHead:
    """Build the head of a model's response."""
    return AnswerHead(answer_id, int(time.time()), origin.model_id, origin.system_fingerprint)


def describe_origin_headers(origin: AnswerOrigin) -> dict[str, str]:
    """Return headers that name the model and its origin; unknown values are omitted."""
    named = {
        "x-model-id": origin.model_id,
        "x-run-id": origin.run_id,
        "x-checkpoint": origin.checkpoint,
        "x-dataset-sha256": origin.dataset_sha256,
    }
    return {
        key: value.encode("unicode_escape").decode()[:_MAX_HEADER_CHARACTERS]
        for key, value in named.items()
        if value is not None
    }


def _stream(
    first: Item | None,
    rest: AsyncGenerator[Item, None],
    source: _ChunkSource[Item],
    origin: AnswerOrigin,
) -> StreamingResponse:
    """Send a stream, whose first item was read ahead, as server-sent events."""
    return StreamingResponse(
        _write_events(first, rest, source),
        media_type="text/event-stream",
        headers={
            **describe_origin_headers(origin),
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        },
    )


async def _write_events(
    first: Item | None, rest: AsyncGenerator[Item, None], source: _ChunkSource[Item]
) -> AsyncIterator[str]:
    """Yield server-sent events; an error after the first byte becomes the last event.

    The chunks of an item are sent together.
    """
    try:
        async with aclosing(rest):
            if first is not None and (events := _join_events(source.convert(first))):
                yield events
            async for item in rest:
                if events := _join_events(source.convert(item)):
                    yield events
        if events := _join_events(source.finish()):
            yield events
    except Exception as exc:
        if is_expected(exc):
            logger.warning("a streamed answer was interrupted: %s", exc)
        else:
            logger.exception("a streamed answer was interrupted")
        yield f"data: {bytes(to_response(exc).body).decode()}\n\n"
        return
    yield "data: [DONE]\n\n"


def _join_events(chunks: Sequence[JsonObject]) -> str:
    return "".join(map(write_event, chunks))
