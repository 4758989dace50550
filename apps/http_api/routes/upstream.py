"""`/v1/chat/completions` and `/v1/completions` relayed to upstreams; see `apps/upstream/proxy.py`.

Requests are forwarded unchanged except for the id of the model; the upstream validates them.
"""

from fastapi import APIRouter
from fastapi.responses import Response

from apps.access.roles import Permission, requires
from apps.http_api.completion_responses import respond_relayed
from apps.http_api.json_body import JsonBody
from apps.http_api.routes import ProxyOf

router = APIRouter(prefix="/v1")

_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model"],
                "properties": {"model": {"type": "string"}},
                "additionalProperties": True,
                "description": "Forwarded to the upstream server, which validates it.",
            }
        }
    },
}


@router.post("/chat/completions", openapi_extra={"requestBody": _BODY})
@requires(Permission.GENERATE)
async def complete_chat(proxy: ProxyOf, body: JsonBody) -> Response:
    """Answer a chat with the model that `model` names; headers contain the model's origin."""
    return await respond_relayed(proxy, "/v1/chat/completions", body.value)


@router.post("/completions", openapi_extra={"requestBody": _BODY})
@requires(Permission.GENERATE)
async def complete_text(proxy: ProxyOf, body: JsonBody) -> Response:
    """Complete prompts on the upstream."""
    return await respond_relayed(proxy, "/v1/completions", body.value)
