"""`/livez`, `/readyz` and `/healthz`, and the redirects to the page and its icon.

The health routes need no key, so they reveal only the state of each part.
"""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, RedirectResponse

from apps.access.roles import Permission, requires
from apps.http_api.readiness import Readiness

router = APIRouter()


@router.get("/livez")
@requires(Permission.ANY_KEY)
async def check_liveness() -> JSONResponse:
    """Return 200: the process that serves HTTP is running."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
@router.get("/healthz", include_in_schema=False)  # the name of earlier releases
@requires(Permission.ANY_KEY)
async def check_readiness(request: Request) -> JSONResponse:
    """Return 200 if the storage is writable and the deployments can respond, else 503."""
    readiness: Readiness = request.app.state.readiness
    passed = await readiness.check()
    is_ready = all(passed.values())
    body = {
        "status": _name_state(is_ready),
        "checks": {name: _name_state(state) for name, state in passed.items()},
    }
    return JSONResponse(body, 200 if is_ready else 503, {"cache-control": "no-store"})


def _name_state(is_well: bool) -> str:
    return "ok" if is_well else "failed"


@router.get("/", include_in_schema=False)
@requires(Permission.ANY_KEY)
async def go_to_page() -> RedirectResponse:
    """Redirect a browser to the page."""
    return RedirectResponse("/ui/")


@router.get("/favicon.ico", include_in_schema=False)
@requires(Permission.ANY_KEY)
async def go_to_icon() -> RedirectResponse:
    """Redirect a browser to the page's icon, which it requests for every address."""
    return RedirectResponse("/ui/favicon.ico")
