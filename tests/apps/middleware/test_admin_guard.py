"""Access to an application for administrators only."""

import httpx
import pytest
from starlette.responses import PlainTextResponse

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.middleware.admin_guard import AdminGuard
from storage.durable import read_json_lines
from storage.layout import StorageLayout

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_admin_guard_admits_only_admin_keys_and_audits_refusals(
    layout: StorageLayout,
) -> None:
    keys = KeyStore(layout)
    admin, chat = keys.create("ann", Role.ADMIN).text, keys.create("bob", Role.CHAT).text
    guard = AdminGuard(PlainTextResponse("answer"), str(layout.root), require_key=False)
    transport = httpx.ASGITransport(guard, client=("10.0.0.9", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        statuses = []
        for key in (admin, chat, "wrong"):
            headers = {"authorization": f"Bearer {key}"}
            statuses.append((await client.post("/v1/completions", headers=headers)).status_code)
    assert statuses == [200, 403, 401]
    lines = read_json_lines(layout.access.audit)
    assert [(line.get("key"), line["path"], line["reason"]) for line in lines] == [
        ("bob", "/v1/completions", "insufficient_permission"),
        (None, "/v1/completions", "invalid_api_key"),
    ], "an admitted request was recorded as a change"
