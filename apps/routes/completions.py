"""`/v1/completions`: text gone on with, without a chat template; whole or in events."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse, Response

from apps.answers import Chunk, Item, describe_origin, make_head, start_with, stream_chunks
from apps.routes import ServicesOf, describe_body
from serving import openai_shapes
from serving.completion_protocol import CompletionRequest, parse_completion_request
from serving.openai_shapes import AnswerHead
from storage.layout import new_id

router = APIRouter(prefix="/v1")


@router.post("/completions", openapi_extra=describe_body(CompletionRequest))
async def complete_text(services: ServicesOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Go on with prompts; with `echo` and `logprobs`, tell how likely the prompts are."""
    request = parse_completion_request(body)
    answer_id = new_id("cmpl")
    if request.stream:
        items = services.text.stream("completion", body, answer_id)
        first = await anext(items)  # errors up to here are plain HTTP errors
        head = make_head(answer_id, first["origin"])
        chunks = _build_chunks(head, start_with(first, items), request)
        return stream_chunks(chunks, describe_origin(first["origin"]))
    answer = await services.text.answer("completion", body, answer_id)
    choices = answer["choices"]
    content = openai_shapes.build_completion(
        make_head(answer_id, answer["origin"]),
        choices,
        openai_shapes.build_usage(
            answer["num_prompt_tokens"], sum(one["num_completion_tokens"] for one in choices)
        ),
        has_logprobs=request.logprobs is not None,
    )
    return JSONResponse(content, headers=describe_origin(answer["origin"]))


async def _build_chunks(
    head: AnswerHead, items: AsyncIterator[Item], request: CompletionRequest
) -> AsyncIterator[list[Chunk]]:
    num_prompt_tokens: dict[int, int] = {}  # by the number of the prompt
    num_completion_tokens = 0
    offsets: Counter[int] = Counter()
    async for item in items:
        chunks = []
        for piece in item["pieces"]:
            index = piece["index"]
            if piece["finish_reason"] is not None:
                num_prompt_tokens[index // request.n] = piece["num_prompt_tokens"]
                num_completion_tokens += piece["num_completion_tokens"]
            chunks.append(
                openai_shapes.build_completion_chunk(
                    head, piece, offsets[index], has_logprobs=request.logprobs is not None
                )
            )
            offsets[index] += len(piece["text"])
        yield chunks
    if request.stream_options is not None and request.stream_options.include_usage:
        usage = openai_shapes.build_usage(sum(num_prompt_tokens.values()), num_completion_tokens)
        yield [openai_shapes.build_usage_chunk(head, "text_completion", usage)]
