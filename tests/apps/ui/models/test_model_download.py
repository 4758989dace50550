"""Downloads of models through the page."""

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer, StubApi, build_stub
from tests.apps.ui.page_server import serve_page

NUM_PIECES = 20
PIECE = b"x" * 100_000


@pytest.fixture
def api() -> FastAPI:
    return build_stub(StubApi())


@pytest.fixture
def page(api: FastAPI) -> Iterator[httpx.Client]:
    with (
        LocalServer(api) as url,
        serve_page(UiSettings(api_url=url)) as page_url,
        httpx.Client(base_url=page_url) as client,
    ):
        yield client


def test_archive_is_streamed_with_its_name(api: FastAPI, page: httpx.Client) -> None:
    asked = []

    @api.get("/v1/models/{model_id}/archive")
    def send(model_id: str, format: str) -> StreamingResponse:  # noqa: A002 - the API's name
        asked.append((model_id, format))
        return StreamingResponse(iter([PIECE] * NUM_PIECES))

    answer = page.get("/models/tuned-1.2/archive?format=zip")
    assert answer.content == PIECE * NUM_PIECES
    assert answer.headers["content-disposition"] == 'attachment; filename="tuned-1.2.zip"'
    assert "content-encoding" not in answer.headers  # compressing weights takes long for nothing
    assert asked == [("tuned-1.2", "zip")]
    assert page.get("/models/tuned/archive?format=exe").status_code == 422


def test_archive_that_ends_early_is_not_complete_for_the_visitor(
    api: FastAPI, page: httpx.Client
) -> None:
    def fail() -> Iterator[bytes]:
        yield PIECE
        raise RuntimeError("the file differs from the published one")

    @api.get("/v1/models/{model_id}/archive")
    def send(model_id: str) -> StreamingResponse:
        return StreamingResponse(fail())

    with pytest.raises(httpx.RemoteProtocolError):
        page.get("/models/tuned/archive")


@pytest.mark.parametrize(
    "path", ["/models/a%22b/archive", "/models/a/b/archive", "/models//archive"]
)
def test_other_names_are_unknown_routes(page: httpx.Client, path: str) -> None:
    answer = page.get(path)
    assert (answer.status_code, answer.text) == (404, "not found")


def test_refusal_of_api_is_shown(api: FastAPI, page: httpx.Client) -> None:
    answer = page.get("/models/gone/archive")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/plain")
