"""`/v1/chat/completions`, whole or as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse, Response

from apps.answers import Chunk, Item, describe_origin, make_head, start_with, stream_chunks
from apps.routes import ServicesOf, describe_body
from serving import openai_shapes
from serving.chat_protocol import ChatCompletionRequest, parse_chat_request
from serving.openai_shapes import AnswerHead
from storage.layout import new_id

router = APIRouter(prefix="/v1")


@router.post("/chat/completions", openapi_extra=describe_body(ChatCompletionRequest))
async def complete_chat(services: ServicesOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Answer a chat with the model that `model` names; headers tell where that model came from."""
    request = parse_chat_request(body)
    answer_id = new_id("chatcmpl")
    if request.stream:
        items = services.text.stream("chat", body, answer_id)
        first = await anext(items)  # errors up to here are plain HTTP errors
        head = make_head(answer_id, first["origin"])
        chunks = _build_chunks(head, start_with(first, items), request)
        return stream_chunks(chunks, describe_origin(first["origin"]))
    answer = await services.text.answer("chat", body, answer_id)
    choices = answer["choices"]
    content = openai_shapes.build_chat_completion(
        make_head(answer_id, answer["origin"]),
        choices,
        openai_shapes.build_usage(
            answer["num_prompt_tokens"], sum(one["num_completion_tokens"] for one in choices)
        ),
        has_logprobs=request.logprobs,
    )
    return JSONResponse(content, headers=describe_origin(answer["origin"]))


async def _build_chunks(
    head: AnswerHead, items: AsyncIterator[Item], request: ChatCompletionRequest
) -> AsyncIterator[list[Chunk]]:
    num_prompt_tokens = num_completion_tokens = 0
    chunks = [openai_shapes.build_chat_opening(head, index) for index in range(request.n)]
    async for item in items:
        for piece in item["pieces"]:
            num_prompt_tokens = max(num_prompt_tokens, piece["num_prompt_tokens"])
            num_completion_tokens += piece["num_completion_tokens"]
            chunks += openai_shapes.build_chat_chunks(head, piece, has_logprobs=request.logprobs)
        yield chunks
        chunks = []
    if request.stream_options is not None and request.stream_options.include_usage:
        usage = openai_shapes.build_usage(num_prompt_tokens, num_completion_tokens)
        yield [openai_shapes.build_usage_chunk(head, "chat.completion.chunk", usage)]
