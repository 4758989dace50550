"""`/v1/chat/completions` and `/v1/completions`, whole or as server-sent events."""

from functools import partial

from fastapi import APIRouter
from fastapi.responses import Response

from apps.access.roles import Permission, requires
from apps.http_api.completion_responses import respond
from apps.http_api.json_body import JsonBody
from apps.http_api.publish_on_demand import ensure_model
from apps.http_api.routes import GeneratorOf, PrincipalOf, ServicesOf, describe_body
from serving.openai.chat import ChatCompletionRequest, parse_chat_request
from serving.openai.chunks import ChatChunks, CompletionChunks
from serving.openai.completion import CompletionRequest, parse_completion_request
from serving.openai.responses import build_chat_completion, build_completion

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
        request,
        body.value,
        id_prefix="chatcmpl",
        build=partial(build_chat_completion, has_logprobs=request.logprobs),
        build_chunks=partial(ChatChunks, request),
    )


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
        request,
        body.value,
        id_prefix="cmpl",
        build=partial(build_completion, has_logprobs=request.logprobs is not None),
        build_chunks=partial(CompletionChunks, request),
    )
