"""An answer on its way to the client: what is said of its origin, and its events."""

import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse

from apps.errors import to_response
from serving.openai_shapes import AnswerHead

logger = logging.getLogger(__name__)

Chunk = dict[str, Any]
Item = dict[str, Any]  # what a generator's stream is made of


def make_head(answer_id: str, origin: Mapping[str, Any]) -> AnswerHead:
    """Make the head of an answer that came from a model."""
    return AnswerHead(answer_id, int(time.time()), origin["model_id"], origin["system_fingerprint"])


def describe_origin(origin: Mapping[str, Any]) -> dict[str, str]:
    """Say in headers which model answered and where it came from, as far as is known."""
    named = {
        "x-model-id": origin["model_id"],
        "x-run-id": origin["run_id"],
        "x-checkpoint": origin["checkpoint"],
        "x-dataset-sha256": origin["dataset_sha256"],
    }
    return {key: str(value) for key, value in named.items() if value is not None}


async def start_with(first: Item, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """Put back the item that was taken to see what answers."""
    yield first
    async for item in items:
        yield item


def stream_chunks(
    batches: AsyncIterator[Iterable[Chunk]], headers: Mapping[str, str]
) -> StreamingResponse:
    """Send chunks as server-sent events, those that are there at once together."""
    return StreamingResponse(
        _write_events(batches),
        media_type="text/event-stream",
        headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _write_events(batches: AsyncIterator[Iterable[Chunk]]) -> AsyncIterator[str]:
    """Yield server-sent events; an error after the first byte becomes the last event."""
    try:
        async for chunks in batches:
            if events := "".join(map(_write_event, chunks)):
                yield events
    except Exception as exc:
        logger.exception("a streamed answer broke off")
        yield f"data: {bytes(to_response(exc).body).decode()}\n\n"
        return
    yield "data: [DONE]\n\n"


def _write_event(chunk: Chunk) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
