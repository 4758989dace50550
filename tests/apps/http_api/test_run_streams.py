import asyncio

import httpx
import pytest

from apps.http_api.run_streams import follow_events, follow_log
from storage.layout import StorageLayout
from tests.apps.conftest import add_job
from training.run.run_log import RunLog

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_streams_do_not_occupy_slots_of_other_requests(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    """Previously, streams of a paused job occupied all slots of the API, even of health checks."""
    run = add_job(layout, "tiny")
    run.update_record(status="paused")
    path = f"/v1/fine_tuning/jobs/{run.path.name}"
    asked = [f"{path}/events?stream=true", f"{path}/logs?follow=true"]
    streams = [asyncio.create_task(client.get(address, timeout=60)) for address in asked]
    await asyncio.sleep(0)  # both tasks run until their first wait and are counted by then
    refused = await client.get(f"{path}/events", headers={"accept": "text/event-stream"})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "overloaded"
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get(f"{path}/events")).status_code == 200
    run.update_record(status="cancelled")
    async with asyncio.timeout(10):
        for stream in streams:
            assert (await stream).status_code == 200
    assert (await client.get(f"{path}/logs?follow=true")).status_code == 200


async def test_event_stream_ends_at_maximum_age(layout: StorageLayout) -> None:
    run = add_job(layout, "tiny")
    run.events.add("one")
    run.events.add("two")
    assert [piece async for piece in follow_events(run, 2, max_age_s=0.0)] == []
    (piece,) = [piece async for piece in follow_events(run, 1, max_age_s=0.0)]
    assert piece.startswith("id: ftevent-ftjob-000001-000002\n")


async def test_followed_log_ends_at_maximum_age(layout: StorageLayout) -> None:
    run = add_job(layout, "tiny")
    run.update_record(status="paused")
    run.log_file.write_bytes(b"x" * 3_000_000)
    received = 0
    async with asyncio.timeout(10):
        for _ in range(4):  # each request returns a part and continues at the offset
            pieces = [piece async for piece in follow_log(run, received, max_age_s=0.0)]
            assert len(pieces) <= 1
            received += sum(map(len, pieces))
    assert received == 3_000_000


async def test_followed_events_are_read_incrementally(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_job(layout, "tiny")
    run.events.add("first")
    monkeypatch.setattr("apps.http_api.run_streams.POLL_S", 0.01)
    async with asyncio.timeout(10):
        stream = follow_events(run, 0, max_age_s=60.0)
        assert "first" in await anext(stream)
        with run.events.path.open("r+b") as file:  # a second read would not find the event
            file.write(b"#")
        run.events.add("second")
        piece = await anext(stream)
        await stream.aclose()
    assert piece.startswith("id: ftevent-ftjob-000001-000002\n")
    assert "second" in piece


async def test_log_is_followed_across_rotation(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_job(layout, "tiny")
    log = RunLog(run.log_file, max_part_bytes=10)
    monkeypatch.setattr("apps.http_api.run_streams.POLL_S", 0.01)
    log.append("one")
    async with asyncio.timeout(10):
        stream = follow_log(run, 0, max_age_s=60.0)
        assert await anext(stream) == b"one\n"
        for line in ("two", "three", "four"):
            log.append(line)
        run.update_record(status="failed")
        assert b"".join([piece async for piece in stream]) == b"two\nthree\nfour\n"


async def test_log_offset_header_shows_removed_part(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    run = add_job(layout, "tiny")
    run.update_record(status="failed")
    log = RunLog(run.log_file, max_part_bytes=10)
    for number in range(10):
        log.append(f"line {number}")
    path = f"/v1/fine_tuning/jobs/{run.path.name}/logs"
    kept = "".join(f"line {number}\n" for number in range(8, 10))
    for query in ("offset=0", "offset=0&follow=true", "tail=1000"):
        answer = await client.get(f"{path}?{query}")
        assert (answer.text, answer.headers["x-log-offset"]) == (kept, "56"), query
    assert (await client.get(f"{path}?tail=3")).text == " 9\n"
    assert (await client.get(f"{path}?offset=69")).text == "\n"
    assert [piece async for piece in follow_log(run, 0, max_age_s=60.0)] == [], (
        "the log was followed from an offset that was removed"
    )
