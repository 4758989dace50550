"""`/healthz`, and the way from the bare address to the page."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse

from apps.routes import ServicesOf

router = APIRouter()


@router.get("/healthz")
async def check_health(services: ServicesOf) -> JSONResponse:
    """Answer 200 if a generator answers and the storage can be read."""
    services.models.read_aliases()
    await services.chat.check()
    return JSONResponse({"status": "ok"})


@router.get("/", include_in_schema=False)
async def go_to_page() -> RedirectResponse:
    """Send a browser to the page."""
    return RedirectResponse("/ui/")
