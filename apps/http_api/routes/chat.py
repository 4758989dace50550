"""`/v1/chat/completions`, whole or as server-sent events."""

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
from serving.openai.chat import ChatCompletionRequest, parse_chat_request
from serving.openai.responses import AnswerHead

router = APIRouter(prefix="/v1")


@router.post("/chat/completions", openapi_extra=describe_body(ChatCompletionRequest))
@requires(Permission.GENERATE)
async def complete_chat(
    services: ServicesOf, text: GeneratorOf, principal: PrincipalOf, body: JsonBody
) -> Response:
    """Answer a chat with the model that `model` names; headers contain the model's origin."""
    request = await body.check(parse_chat_request)
    await ensure_model(services, principal, request.model)
    return await respond(
        text,
        "chat",
        body.value,
        id_prefix="chatcmpl",
        is_streamed=request.stream,
        build=partial(openai_shapes.build_chat_completion, has_logprobs=request.logprobs),
        build_chunks=partial(_build_chunks, request),
    )


async def _build_chunks(
    request: ChatCompletionRequest, head: AnswerHead, items: AsyncIterator[Item]
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
    if request.wants_usage:
        usage = openai_shapes.build_usage(num_prompt_tokens, num_completion_tokens)
        yield [openai_shapes.build_usage_chunk(head, "chat.completion.chunk", usage)]
