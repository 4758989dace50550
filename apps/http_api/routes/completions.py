"""`/v1/completions`, without a chat template, whole or as server-sent events."""

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter
from fastapi.responses import Response

from apps.access.roles import Permission, requires
from apps.http_api.checkpoint_models import ensure_model
from apps.http_api.completion_responses import Chunk, Item, respond
from apps.http_api.json_body import JsonBody
from apps.http_api.routes import GeneratorOf, PrincipalOf, ServicesOf, describe_body
from serving.openai import responses as openai_shapes
from serving.openai.completion import CompletionRequest, parse_completion_request
from serving.openai.responses import AnswerHead

router = APIRouter(prefix="/v1")


@router.post("/completions", openapi_extra=describe_body(CompletionRequest))
@requires(Permission.GENERATE)
async def complete_text(
    services: ServicesOf, text: GeneratorOf, principal: PrincipalOf, body: JsonBody
) -> Response:
    """Complete prompts; with `echo` and `logprobs`, also return the prompts' log probabilities."""
    request = await body.check(parse_completion_request)
    await ensure_model(services, principal, request.model)
    return await respond(
        text,
        "completion",
        body.value,
        id_prefix="cmpl",
        is_streamed=request.stream,
        build=partial(openai_shapes.build_completion, has_logprobs=request.logprobs is not None),
        build_chunks=partial(_build_chunks, request),
    )


async def _build_chunks(
    request: CompletionRequest, head: AnswerHead, items: AsyncIterator[Item]
) -> AsyncIterator[list[Chunk]]:
    num_prompt_tokens: dict[int, int] = {}  # by the index of the prompt
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
    if request.wants_usage:
        usage = openai_shapes.build_usage(sum(num_prompt_tokens.values()), num_completion_tokens)
        yield [openai_shapes.build_usage_chunk(head, "text_completion", usage)]
