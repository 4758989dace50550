import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
import pytest

from apps.client.client import ApiClient
from apps.ui.protection.access import Verdict
from apps.ui.protection.key_check import KeyCheck

Result = TypeVar("Result")


def ask(
    response: httpx.Response | Exception, call: Callable[[KeyCheck], Awaitable[Result]]
) -> Result:
    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    async def run() -> Result:
        async with ApiClient("http://api", transport=httpx.MockTransport(answer)) as client:
            return await call(KeyCheck(client.access))

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "code", "verdict"),
    [
        (401, "invalid_api_key", Verdict.REFUSED),
        (429, "invalid_api_key", Verdict.REFUSED),
        (429, "overloaded", Verdict.UNKNOWN),
        (503, "starting", Verdict.UNKNOWN),
    ],
)
def test_unavailable_api_does_not_make_key_invalid(
    status: int, code: str, verdict: Verdict
) -> None:
    refusal = httpx.Response(status, json={"error": {"message": "no", "code": code}})
    assert ask(refusal, lambda keys: keys.check("key")) is verdict
    assert ask(refusal, lambda keys: keys.may_write_files("key")) is False


@pytest.mark.parametrize(("key", "verdict"), [("ann", Verdict.VALID), (None, Verdict.NOT_NEEDED)])
def test_accepted_key_is_valid_or_not_needed(key: str | None, verdict: Verdict) -> None:
    access = httpx.Response(200, json={"object": "access", "key": key, "permissions": []})
    assert ask(access, lambda keys: keys.check("key")) is verdict


@pytest.mark.parametrize("response", [httpx.Response(200, text="<html>"), httpx.ConnectError("no")])
def test_failed_key_check_has_unknown_verdict(response: httpx.Response | Exception) -> None:
    assert ask(response, lambda keys: keys.check("key")) is Verdict.UNKNOWN
    assert ask(response, lambda keys: keys.may_write_files("key")) is False


@pytest.mark.parametrize("permissions", [["files.write"], ["files.read"]])
def test_upload_requires_files_write_permission(permissions: list[str]) -> None:
    access = httpx.Response(200, json={"key": "ann", "permissions": permissions})
    may_write = ask(access, lambda keys: keys.may_write_files("key"))
    assert may_write == ("files.write" in permissions)
