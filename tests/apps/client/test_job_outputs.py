"""Events and logs that are followed although the connection is lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest

from apps.client.client import ApiClient
from apps.client.errors import ApiUnreachableError, ConnectionLostError
from apps.client.resources import Event
from tests.apps.client.scripted_server import (
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_json,
    write_chunk,
    write_event,
)

pytestmark = pytest.mark.usefixtures("short_retry_timeout")

PATH = "/v1/fine_tuning/jobs/ftjob-1"
Item = TypeVar("Item")


def describe_job(status: str) -> bytes:
    return answer_json(
        f'{{"id": "ftjob-1", "status": "{status}", "model": "m", "training_file": "f",'
        ' "created_at": 1}'
    )


def collect(
    url: str, follow: Callable[[ApiClient], AsyncGenerator[Item, None]], found: list[Item]
) -> list[Item]:
    """Append all items to `found`, including those before a failure."""

    async def run() -> None:
        async with ApiClient(url) as api, aclosing(follow(api)) as items:
            async for item in items:
                found.append(item)  # noqa: PERF401 - items before a failure are kept

    asyncio.run(run())
    return found


def test_followed_events_are_complete_after_lost_connections() -> None:
    healthy = answer_json("{}")
    server = ScriptedServer(
        answer(write_event(1), write_event(2)[:-5]),
        healthy,
        answer(write_event(2), write_event(3)),
        healthy,
        answer(LAST_CHUNK, status="204 No Content"),
    )
    events = collect(server.url, lambda api: api.job_outputs.follow_events("ftjob-1"), [])
    assert [event.id for event in events] == ["e1", "e2", "e3"]
    asked = [request for request in server.requests if f"GET {PATH}/events" in request]
    assert ["last-event-id: e1" in asked[1], "last-event-id: e3" in asked[2]] == [True, True]


def test_followed_events_raise_when_api_stays_unreachable() -> None:
    server = ScriptedServer(answer(write_event(1)))
    events: list[Event] = []
    with pytest.raises(ApiUnreachableError):
        collect(server.url, lambda api: api.job_outputs.follow_events("ftjob-1"), events)
    assert [event.id for event in events] == ["e1"]


def test_followed_log_is_complete_after_lost_connection() -> None:
    server = ScriptedServer(
        answer(write_chunk("one\n"), headers="x-log-offset: 5\r\n"),
        answer_json("{}"),
        describe_job("running"),
        answer(write_chunk("two\n"), LAST_CHUNK, headers="x-log-offset: 9\r\n"),
        answer_json("{}"),
        describe_job("succeeded"),
        answer(write_chunk("three\n"), LAST_CHUNK, headers="x-log-offset: 13\r\n"),
    )
    pieces = collect(
        server.url, lambda api: api.job_outputs.stream_log("ftjob-1", 64, follow=True), []
    )
    assert b"".join(pieces) == b"one\ntwo\nthree\n"
    asked = [request for request in server.requests if f"GET {PATH}/logs" in request]
    assert ["offset=9" in asked[1], "offset=13" in asked[2]] == [True, True]


def test_lost_connection_raises_for_log_that_is_not_followed() -> None:
    server = ScriptedServer(answer(write_chunk("one\n"), headers="x-log-offset: 5\r\n"))
    with pytest.raises(ConnectionLostError):
        collect(server.url, lambda api: api.job_outputs.stream_log("ftjob-1", 64, follow=False), [])


def test_refusal_with_truncated_body_ends_followed_log_with_error() -> None:
    """Previously, the followed log then ended with an `UnboundLocalError`."""
    server = ScriptedServer(answer(write_chunk('{"err'), status="503 Service Unavailable"))
    with pytest.raises(ApiUnreachableError):
        collect(server.url, lambda api: api.job_outputs.stream_log("ftjob-1", 64, follow=True), [])
