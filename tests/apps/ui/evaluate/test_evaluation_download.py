"""Downloads of the rows of an evaluation through the page."""

import threading
from collections.abc import Iterator

import httpx
import pytest
from fastapi.responses import StreamingResponse

from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer, StubApi, build_stub
from tests.apps.stub_evaluations import add_sample_evaluations
from tests.apps.ui.page_server import serve_page


@pytest.fixture
def page(api: StubApi) -> Iterator[httpx.Client]:
    add_sample_evaluations(api.evaluations_of_models)
    with (
        serve_page(UiSettings(api_url=api.url)) as url,
        httpx.Client(base_url=url) as client,
    ):
        yield client


def test_rows_are_downloaded_as_csv(api: StubApi, page: httpx.Client) -> None:
    answer = page.get("/evaluate/eval-1/rows?filter=wrong")
    assert answer.status_code == 200
    assert answer.text.splitlines()[0] == "number,expected"
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="eval-1-wrong.csv"'
    assert api.evaluations_of_models.asked[-1] == {"filter": "wrong", "format": "csv"}


def test_rows_arrive_before_the_api_has_sent_all() -> None:
    api = build_stub(StubApi())
    is_received = threading.Event()

    @api.get("/v1/evaluations/{evaluation_id}/rows")
    def send(evaluation_id: str) -> StreamingResponse:
        def write() -> Iterator[bytes]:
            yield b"id,number\r\n"
            yield b"all" if is_received.wait(20) else b"the first line has not arrived"

        return StreamingResponse(write(), media_type="text/csv")

    api.router.routes.insert(0, api.router.routes.pop())  # before the stub's own
    with (
        LocalServer(api) as url,
        serve_page(UiSettings(api_url=url)) as page_url,
        httpx.Client(base_url=page_url, headers={"accept-encoding": "identity"}) as client,
        client.stream("GET", "/evaluate/eval-1/rows") as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces) == b"id,number\r\n"
        is_received.set()
        assert b"".join(pieces) == b"all"


def test_unknown_filter_and_unsafe_id_are_refused(page: httpx.Client) -> None:
    assert page.get("/evaluate/eval-1/rows?filter=some").status_code == 422
    assert page.get("/evaluate/..%2Fx/rows").status_code == 404
    assert page.get("/evaluate/a%22b/rows").status_code == 404
