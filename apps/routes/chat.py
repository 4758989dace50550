"""`/v1/chat/completions`, whole or as server-sent events."""

import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse, Response, StreamingResponse

from apps.errors import to_response
from apps.routes import ServicesOf
from serving import openai_shapes
from serving.protocol import ChatCompletionRequest, parse_chat_request
from storage.layout import new_id

logger = logging.getLogger(__name__)
router = APIRouter(prefix="/v1")

Piece = dict[str, Any]


@router.post("/chat/completions")
async def complete_chat(services: ServicesOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Answer a chat with the model that `model` names; headers tell where that model came from."""
    request = parse_chat_request(body)
    pieces = services.chat.chat(body)
    opening = await anext(pieces)  # errors up to here are plain HTTP errors
    answer = _Answer(opening)
    if request.stream:
        return StreamingResponse(
            _stream_events(answer, pieces, request),
            media_type="text/event-stream",
            headers={**answer.headers, "cache-control": "no-cache", "x-accel-buffering": "no"},
        )
    text, last = "", opening
    async for last in pieces:
        text += last["text"]
    content = openai_shapes.build_chat_completion(
        **answer.names, text=text, finish_reason=last["finish_reason"], usage=_count_usage(last)
    )
    return JSONResponse(content, headers=answer.headers)


class _Answer:
    """What every part of one answer has in common."""

    def __init__(self, opening: dict[str, Any]) -> None:
        self.names: dict[str, Any] = {
            "completion_id": new_id("chatcmpl"),
            "created": int(time.time()),
            "model": opening["model_id"],
            "system_fingerprint": opening["system_fingerprint"],
        }
        named = {
            "x-model-id": opening["model_id"],
            "x-run-id": opening["run_id"],
            "x-checkpoint": opening["checkpoint"],
            "x-dataset-sha256": opening["dataset_sha256"],
        }
        self.headers = {key: str(value) for key, value in named.items() if value is not None}


async def _stream_events(
    answer: _Answer, pieces: AsyncIterator[Piece], request: ChatCompletionRequest
) -> AsyncIterator[str]:
    """Yield server-sent events; an error after the first byte becomes the last event."""
    yield _event(
        openai_shapes.build_chat_chunk(**answer.names, delta={"role": "assistant", "content": ""})
    )
    try:
        async for piece in pieces:
            if piece["text"]:
                delta = {"content": piece["text"]}
                yield _event(openai_shapes.build_chat_chunk(**answer.names, delta=delta))
            if piece["finish_reason"] is not None:
                yield _event(
                    openai_shapes.build_chat_chunk(
                        **answer.names, delta={}, finish_reason=piece["finish_reason"]
                    )
                )
                if request.stream_options is not None and request.stream_options.include_usage:
                    yield _event(
                        openai_shapes.build_usage_chunk(**answer.names, usage=_count_usage(piece))
                    )
    except Exception as exc:
        logger.exception("a streamed answer broke off")
        yield f"data: {bytes(to_response(exc).body).decode()}\n\n"
        return
    yield "data: [DONE]\n\n"


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _count_usage(piece: Piece) -> dict[str, int]:
    return openai_shapes.build_usage(piece["num_prompt_tokens"], piece["num_completion_tokens"])
