"""`/v1/access`: the key of a request, and its permissions."""

from collections.abc import Mapping

from fastapi import APIRouter

from apps.access.gate import LOCAL
from apps.access.roles import ROLE_PERMISSIONS, Permission, requires
from apps.http_api.routes import PrincipalOf

router = APIRouter(prefix="/v1")


@router.get("/access")
@requires(Permission.ANY_KEY)
async def show_access(principal: PrincipalOf) -> Mapping[str, object]:
    """Show the name, role, permissions and rate limits of the request's key."""
    return {
        "object": "access",
        "key": None if principal is LOCAL else principal.name,
        "role": principal.role.value,
        "permissions": sorted(each.value for each in ROLE_PERMISSIONS[principal.role]),
        "requests_per_minute": principal.requests_per_minute,
        "tokens_per_minute": principal.tokens_per_minute,
    }
