"""The API requests of an open page "Runs", through the functions of the page."""

import uuid
from collections.abc import Iterator

import pytest

from apps.ui.settings import UiSettings
from tests.apps.stub_api import StubApi
from tests.apps.ui.page_server import PageCaller, serve_page


@pytest.fixture
def visitor(api: StubApi) -> Iterator[PageCaller]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        visitor = PageCaller(url)
        yield visitor
        visitor.close()


def count_refresh_bytes(visitor: PageCaller, api: StubApi) -> int:
    """Return the number of bytes that the API sends for the second refresh of an open page."""
    session = uuid.uuid4().hex
    refresh, size = visitor.find_function("refresh"), 0
    for _ in range(2):
        api.queries.clear()
        before = api.num_sent_bytes
        assert visitor.call(refresh, ["ftjob-1", None], session_hash=session).success
        size = api.num_sent_bytes - before
    return size


def test_refresh_size_does_not_grow_with_history(visitor: PageCaller, api: StubApi) -> None:
    for number in range(100):
        api.add_job(f"ftjob-{number + 2}", "succeeded")
    api.add_job("ftjob-1", "running", progress={"step": 1000, "num_steps": 2000})
    api.add_event("ftjob-1", "Training started")
    before = count_refresh_bytes(visitor, api)
    api.files += [{**api.files[0], "id": f"file-{number}"} for number in range(3000)]
    for number in range(3000):
        api.add_event("ftjob-1", f"Saved a checkpoint at step {number}")
        api.add_job(f"ftjob-{number + 200}", "succeeded")
    assert count_refresh_bytes(visitor, api) < 1.1 * before
    assert "files" not in dict(api.queries)
