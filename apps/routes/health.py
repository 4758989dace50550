"""`/healthz`, and the way from the bare address to the page."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse

from apps.errors import ApiError
from apps.routes import ServicesOf

router = APIRouter()

CHECK_TIMEOUT_S = 5.0


@router.get("/healthz")
async def check_health(services: ServicesOf) -> JSONResponse:
    """Answer 200 if the storage can be read and both the generator and the queue answer."""
    services.models.read_aliases()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await services.text.check()
            await services.fine_tuning.check()
    except TimeoutError:
        raise ApiError(503, "a part of the application does not answer", code="not_ready") from None
    return JSONResponse({"status": "ok"})


@router.get("/", include_in_schema=False)
async def go_to_page() -> RedirectResponse:
    """Send a browser to the page."""
    return RedirectResponse("/ui/")
