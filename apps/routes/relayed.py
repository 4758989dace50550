"""`/v1/chat/completions` and `/v1/completions` where other servers answer; see `apps/relay.py`.

Requests go on as they are, so what may stand in them is for the server to say.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import Response

from apps.answers import respond_relayed
from apps.routes import RelayOf

router = APIRouter(prefix="/v1")


@router.post("/chat/completions")
async def complete_chat(relay: RelayOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Answer a chat with the model that `model` names; headers tell where that model came from."""
    return await respond_relayed(relay, "/v1/chat/completions", body)


@router.post("/completions")
async def complete_text(relay: RelayOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Go on with prompts, as the server does it."""
    return await respond_relayed(relay, "/v1/completions", body)
