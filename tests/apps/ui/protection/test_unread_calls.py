"""The page bounds the events that it keeps for visitors who do not read them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from apps.ui.protection.unread_calls import (
    MAX_CALLS,
    MAX_SESSIONS,
    MAX_STREAMS,
    MAX_STREAMS_PER_KEY,
    MAX_UNREAD_EVENTS,
    UNREAD_LIFETIME_S,
    StreamSlots,
    UnreadCalls,
)
from apps.ui.settings import UiSettings
from tests.apps.stub_api import StubApi
from tests.apps.ui.page_server import PageCaller, serve_page


class Kept:
    """The state of a page: number of unread events, dropped sessions, and the time."""

    def __init__(self) -> None:
        self.num_events = 0
        self.forgotten: list[str] = []
        self.now = 0.0
        self.calls = UnreadCalls(lambda _: self.num_events, self.forgotten.append, lambda: self.now)


def test_calls_of_session_without_reader_are_limited() -> None:
    kept = Kept()
    assert [kept.calls.add("a") for _ in range(MAX_CALLS)] == [None] * MAX_CALLS
    assert "unread" in (kept.calls.add("a") or "")
    assert kept.calls.add("b") is None
    with kept.calls.read("a"):
        assert [kept.calls.add("a") for _ in range(3 * MAX_CALLS)] == [None] * 3 * MAX_CALLS
        kept.num_events = MAX_UNREAD_EVENTS
        assert "unread" in (kept.calls.add("a") or "")


def test_sessions_without_reader_are_limited_and_expire() -> None:
    kept = Kept()
    for number in range(MAX_SESSIONS):
        assert kept.calls.add(f"s{number}") is None
    assert "too many sessions" in (kept.calls.add("late") or "")
    kept.now = UNREAD_LIFETIME_S + 1
    assert kept.calls.add("late") is None
    assert len(kept.forgotten) == MAX_SESSIONS


def test_streams_are_limited_per_key_and_in_total() -> None:
    slots = StreamSlots()
    with ExitStack() as streams:
        for _ in range(MAX_STREAMS_PER_KEY):
            streams.enter_context(slots.count_stream("a"))
        assert "of this key" in (slots.find_refusal("a") or "")
        assert slots.find_refusal("b") is None
        for _ in range(MAX_STREAMS - MAX_STREAMS_PER_KEY):
            streams.enter_context(slots.count_stream(None))
        assert "which is the maximum" in (slots.find_refusal(None) or "")
    assert slots.find_refusal("a") is None


@pytest.fixture
def visitor(api: StubApi) -> Iterator[PageCaller]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        visitor = PageCaller(url)
        yield visitor
        visitor.close()


def test_page_is_not_loaded_again_while_no_stream_is_opened(
    visitor: PageCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = [visitor.http.get("/gradio_api/app_id").status_code]
    with monkeypatch.context() as patch:
        patch.setattr(StreamSlots, "find_refusal", lambda *_: "too many")
        statuses.append(visitor.http.get("/gradio_api/app_id").status_code)
    statuses.append(visitor.http.get("/gradio_api/app_id").status_code)
    assert statuses == [200, 429, 200]


def test_visitor_without_reader_is_refused_until_it_reads(visitor: PageCaller) -> None:
    function = visitor.find_function("choose_job")
    asked = {"event_data": {"changes": ["page"]}}
    statuses = [
        visitor.join(function, [], session_hash="greedy", **asked).status_code
        for _ in range(MAX_CALLS + 1)
    ]
    assert statuses == [200] * MAX_CALLS + [429]
    assert visitor.join(function, [], session_hash="other", **asked).status_code == 200
    assert visitor.call(function, [], **asked).success
