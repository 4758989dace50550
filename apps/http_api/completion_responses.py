"""Responses to text requests: headers with the model's origin, and streamed chunks."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi.responses import JSONResponse, Response, StreamingResponse

from apps.access.exchange import count_tokens
from apps.errors import is_expected, to_response
from apps.http_api.dependencies import TextGenerator
from apps.sse import write_event
from apps.upstream.proxy import UpstreamProxy
from serving.openai.responses import AnswerHead, Choice, build_usage
from serving.origin import RequestKind
from storage.layout import new_id

logger = logging.getLogger(__name__)

Chunk = dict[str, Any]
Item = dict[str, Any]  # an item of a generator's stream
BuildAnswer = Callable[[AnswerHead, Sequence[Choice], dict[str, int]], dict[str, Any]]
BuildChunks = Callable[[AnswerHead, AsyncIterator[Item]], AsyncIterator[list[Chunk]]]


_MAX_HEADER_CHARACTERS = 200


def _make_head(answer_id: str, origin: Mapping[str, Any]) -> AnswerHead:
    """Build the head of a model's response."""
    return AnswerHead(answer_id, int(time.time()), origin["model_id"], origin["system_fingerprint"])


def _describe_origin(origin: Mapping[str, Any]) -> dict[str, str]:
    """Return headers that name the model and its origin; unknown values are omitted."""
    named = {
        "x-model-id": origin["model_id"],
        "x-run-id": origin["run_id"],
        "x-checkpoint": origin["checkpoint"],
        "x-dataset-sha256": origin["dataset_sha256"],
    }
    return {
        key: str(value).encode("unicode_escape").decode()[:_MAX_HEADER_CHARACTERS]
        for key, value in named.items()
        if value is not None
    }


async def respond(
    text: TextGenerator,
    kind: RequestKind,
    body: dict[str, Any],
    *,
    id_prefix: str,
    is_streamed: bool,
    build: BuildAnswer,
    build_chunks: BuildChunks,
) -> Response:
    """Respond to a text request, whole or as events; headers contain the model's origin."""
    answer_id = new_id(id_prefix)
    if is_streamed:
        items = _count_items(text.stream(kind, body, answer_id), body.get("n") or 1)
        first = await anext(items)  # errors up to here are plain HTTP errors
        chunks = build_chunks(_make_head(answer_id, first["origin"]), _start_with(first, items))
        return _stream_chunks(chunks, _describe_origin(first["origin"]))
    answer = await text.answer(kind, body, answer_id)
    choices = answer["choices"]
    usage = build_usage(
        answer["num_prompt_tokens"], sum(one["num_completion_tokens"] for one in choices)
    )
    count_tokens(usage["total_tokens"], is_exact=True)
    content = build(_make_head(answer_id, answer["origin"]), choices, usage)
    return JSONResponse(content, headers=_describe_origin(answer["origin"]))


async def respond_relayed(relay: UpstreamProxy, path: str, body: dict[str, Any]) -> Response:
    """Relay a text request to an upstream; stream its response if the upstream does."""
    origin, answer = await relay.ask(path, body)
    headers = _describe_origin(origin)
    if isinstance(answer, dict):
        _count_usage(answer)
        return JSONResponse(answer, headers=headers)
    first = await anext(answer, None)  # errors up to here are plain HTTP errors
    chunks = answer if first is None else _start_with(first, answer)
    return _stream_chunks(_batch(chunks), headers)


async def _batch(chunks: AsyncGenerator[Chunk, None]) -> AsyncIterator[list[Chunk]]:
    async with aclosing(chunks):
        async for chunk in chunks:
            if not _count_usage(chunk):
                count_tokens(1)
            yield [chunk]


def _count_usage(answer: Mapping[str, Any]) -> bool:
    """Count the tokens that a response or chunk reports; return whether it reports any."""
    usage = answer.get("usage")
    if not isinstance(usage, dict) or not isinstance(usage.get("total_tokens"), int):
        return False
    count_tokens(usage["total_tokens"], is_exact=True)
    return True


async def _count_items(
    items: AsyncGenerator[Item, None], num_choices: int
) -> AsyncGenerator[Item, None]:
    """Count the tokens of a stream: one per piece, and the exact number at its end."""
    num_prompt_tokens: dict[int, int] = {}  # by prompt index
    num_completion_tokens = 0
    async with aclosing(items):
        async for item in items:
            for piece in item["pieces"]:
                count_tokens(1)
                if piece["finish_reason"] is not None:
                    prompt = piece["index"] // num_choices
                    num_prompt_tokens[prompt] = piece["num_prompt_tokens"]
                    num_completion_tokens += piece["num_completion_tokens"]
            yield item
    count_tokens(sum(num_prompt_tokens.values()) + num_completion_tokens, is_exact=True)


async def _start_with(
    first: dict[str, Any], items: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield `first`, which was read ahead, and then the remaining items."""
    async with aclosing(items):
        yield first
        async for item in items:
            yield item


def _stream_chunks(
    batches: AsyncIterator[Iterable[Chunk]], headers: Mapping[str, str]
) -> StreamingResponse:
    """Send chunks as server-sent events; the chunks of a batch are sent together."""
    return StreamingResponse(
        _write_events(batches),
        media_type="text/event-stream",
        headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _write_events(batches: AsyncIterator[Iterable[Chunk]]) -> AsyncIterator[str]:
    """Yield server-sent events; an error after the first byte becomes the last event."""
    try:
        async for chunks in batches:
            if events := "".join(map(write_event, chunks)):
                yield events
    except Exception as exc:
        if is_expected(exc):
            logger.warning("a streamed answer broke off: %s", exc)
        else:
            logger.exception("a streamed answer broke off")
        yield f"data: {bytes(to_response(exc).body).decode()}\n\n"
        return
    yield "data: [DONE]\n\n"
