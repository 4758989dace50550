import json
import re
import time
from pathlib import Path

import httpx
import pytest

from apps.errors import ApiError
from apps.fine_tuning.index.events_index import EventsReader
from storage.layout import StorageLayout
from tests.apps.conftest import add_job
from training.run.folder import RunFolder

pytestmark = pytest.mark.anyio


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "ftjob-1")
    run.path.mkdir()
    return run


def add_events(run: RunFolder, first: int, last: int) -> None:
    with run.events.path.open("a") as file:
        for number in range(first, last + 1):
            event = {"created_at": number, "level": "info", "message": f"event {number}"}
            file.write(json.dumps({**event, "data": {"step": number}}) + "\n")


def name_event(run: RunFolder, number: int) -> str:
    return f"ftevent-{run.path.name}-{number:06d}"


def list_ids(reader: EventsReader, run: RunFolder, limit: int, **more: str) -> list[str]:
    return [event["id"] for event in reader.read_newest(run, limit, **more).events]


def test_newest_events_match_events_file(run: RunFolder) -> None:
    reader = EventsReader()
    assert reader.read_newest(run, 10) == ([], False)
    add_events(run, 1, 30)
    events, has_more = reader.read_newest(run, 10)
    assert events == run.events.read()[::-1][:10]
    assert has_more
    add_events(run, 31, 33)
    assert reader.read_newest(run, 10).events == run.events.read()[::-1][:10]
    assert reader.read_newest(run, 33).events == run.events.read()[::-1]
    assert not reader.read_newest(run, 33).has_more


def test_each_event_is_on_exactly_one_page(run: RunFolder) -> None:
    reader, seen = EventsReader(), list[str]()
    add_events(run, 1, 25)
    has_more = True
    while has_more:
        page = reader.read_newest(run, 10, after=seen[-1] if seen else None)
        seen += [event["id"] for event in page.events]
        has_more = page.has_more
        add_events(run, 26, 26)  # events added between two pages are on neither page
    assert seen == [name_event(run, number) for number in range(25, 0, -1)]


def test_newer_than_returns_only_later_events(run: RunFolder) -> None:
    reader = EventsReader()
    add_events(run, 1, 20)
    newer = name_event(run, 17)
    expected = [name_event(run, number) for number in (20, 19, 18)]
    assert list_ids(reader, run, 10, newer_than=newer) == expected
    assert list_ids(reader, run, 2, newer_than=newer) == expected[:2]
    assert reader.read_newest(run, 2, newer_than=newer).has_more
    assert not reader.read_newest(run, 3, newer_than=newer).has_more
    assert list_ids(reader, run, 10, newer_than=newer, after=expected[1]) == expected[2:]
    assert list_ids(reader, run, 10, newer_than=newer, after=name_event(run, 5)) == []
    assert reader.read_newest(run, 10, newer_than=name_event(run, 20)) == ([], False)


def test_incomplete_line_is_skipped_and_has_no_id(run: RunFolder) -> None:
    reader = EventsReader()
    add_events(run, 1, 3)
    with run.events.path.open("a") as file:
        file.write('{"created_at": 4, "mess')  # a partially written line
    assert list_ids(reader, run, 1) == [name_event(run, 3)]
    run.events.add("after a crash")
    add_events(run, 5, 6)
    assert reader.read_newest(run, 10).events == run.events.read()[::-1]
    assert len(run.events.read()) == 6
    assert list_ids(reader, run, 2, newer_than=name_event(run, 3), after=name_event(run, 6)) == [
        name_event(run, 5),
        name_event(run, 4),
    ]


def test_replaced_events_file_is_read_from_start(run: RunFolder) -> None:
    reader = EventsReader()
    add_events(run, 1, 50)
    reader.read_newest(run, 10)
    run.events.path.rename(run.path / "old")
    add_events(run, 101, 120)
    assert reader.read_newest(run, 10).events == run.events.read()[::-1][:10]


@pytest.mark.parametrize("param", ["after", "newer_than"])
@pytest.mark.parametrize(
    "event_id",
    [
        "ftevent-ftjob-1-000004",
        "ftevent-ftjob-1-000000",
        "ftevent-ftjob-1-1",
        "ftevent-ftjob-1-0000001",
        "ftevent-ftjob-1-" + "9" * 5000,
        "ftevent-ftjob-2-000001",
        "",
    ],
)
def test_unknown_event_id_is_refused(run: RunFolder, param: str, event_id: str) -> None:
    add_events(run, 1, 3)
    expected = f"{param} is {event_id!r}, expected the id of an event of job {run.path.name!r}"
    with pytest.raises(ApiError, match=f"^{re.escape(expected)}$") as caught:
        EventsReader().read_newest(run, 10, **{param: event_id})
    assert (caught.value.status, caught.value.param) == (404, param)


def test_second_read_of_long_events_file_is_fast(run: RunFolder) -> None:
    reader = EventsReader()
    add_events(run, 1, 100_000)
    reader.read_newest(run, 100)
    took_s = []
    for number in range(100_001, 100_006):
        add_events(run, number, number)
        started = time.thread_time()
        events = reader.read_newest(run, 100).events
        took_s.append(time.thread_time() - started)
        assert events[0]["id"] == name_event(run, number)
    assert min(took_s) < 0.02


async def test_events_route_reads_only_appended_events(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    """The events already read are damaged afterwards, so that a second read would fail."""
    run = add_job(layout, "tiny")
    add_events(run, 1, 200)
    path = f"/v1/fine_tuning/jobs/{run.path.name}/events"
    before = (await client.get(path, params={"limit": 1})).json()
    with run.events.path.open("r+b") as file:
        file.write(b"#")
    add_events(run, 201, 202)
    known = before["data"][0]["id"]
    page = (await client.get(path, params={"newer_than": known})).json()
    assert [event["message"] for event in page["data"]] == ["event 202", "event 201"]
    assert (page["first_id"], page["has_more"]) == (name_event(run, 202), False)
    refused = await client.get(path, params={"newer_than": "ftevent-other-000001"})
    assert refused.status_code == 404
    assert refused.json()["error"]["param"] == "newer_than"
