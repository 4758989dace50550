"""Documents with the first content of a page, read with the key of the visitor."""

import asyncio
import json
import zlib
from types import SimpleNamespace

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import Message, Receive, Scope, Send

from apps.ui.frame import first_views
from apps.ui.frame.first_views import FirstViews
from apps.ui.frame.page_frame import PageFrame
from apps.ui.protection.visitor import find_visitor_key
from apps.ui.settings import UiSettings
from tests.apps.stub_api import StubApi
from tests.apps.ui.page_server import PageCaller, serve_page

REQUEST = Request({"type": "http", "query_string": b"run=1", "headers": []})


def fill(views: FirstViews, html: str) -> str:
    before, after = views.split(html, "page") or ("", "")
    return before + asyncio.run(views.read("page", REQUEST)) + after


def test_content_takes_the_place_of_the_mark() -> None:
    views = FirstViews()

    async def read(request: Request) -> object:
        return {"run": request.query_params["run"], "html": '</script><b a="1">'}

    mark = views.mark("page", read)
    html = fill(views, f'{{"value":"{mark}","other":1}}')
    assert "<" not in html
    assert json.loads(html) == {"value": {"run": "1", "html": '</script><b a="1">'}, "other": 1}
    assert views.has("page")
    assert not views.has("other")


@pytest.mark.parametrize("fault", ["slow", "broken"])
def test_document_without_content_has_the_default(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_views, "PATIENCE_S", 0.01)
    views = FirstViews()

    async def read(_: Request) -> object:
        if fault == "slow":
            await asyncio.sleep(60)
        raise RuntimeError("a fault")

    mark = views.mark("page", read, "Loading…")
    assert json.loads(fill(views, f'["{mark}"]')) == ["Loading…"]
    assert ("a fault" in caplog.text) == (fault == "broken")


def test_documents_have_what_their_address_names(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded")
    with serve_page(UiSettings(api_url=api.url)) as url:
        visitor = PageCaller(url)
        listed = visitor.read_value("/runs", "runs-page")
        run = visitor.read_value("/runs?run=ftjob-1", "runs-page")
        evaluations = visitor.read_value("/evaluate", "evaluate-page")
        models = visitor.read_value("/models", "models-view")
        cluster = visitor.read_value("/cluster", "cluster-view")
        kept = visitor.http.get("/runs").headers["cache-control"]
        visitor.close()
    assert (listed["place"], listed["lists"]["runs"]) == ("list  ", ["ftjob-1"])
    assert run["place"] == "run ftjob-1 "
    assert run["serial"] != listed["serial"]
    assert evaluations["place"] == "list "
    assert "menus" in evaluations["values"]
    assert 'data-shown=""' in models
    assert "<h2" in cluster
    assert kept == "no-store"


def test_document_without_a_mark_is_not_split() -> None:
    views = FirstViews()
    views.mark("page", _SlowReader())
    assert views.split("<html></html>", "page") is None


def test_documents_beyond_the_limit_come_without_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_views, "MAX_READING", 1)
    views = FirstViews()
    views.mark("page", read := _SlowReader(), "Loading…")

    async def read_both() -> list[str]:
        return await asyncio.gather(*(views.read("page", REQUEST) for _ in range(2)))

    assert [json.loads(text) for text in asyncio.run(read_both())] == ["the content", "Loading…"]
    assert read.has_begun
    assert json.loads(asyncio.run(views.read("page", REQUEST))) == "the content"


def test_content_is_read_with_the_key_of_the_visitor() -> None:
    views = FirstViews()
    keys: list[str | None] = []

    async def read(_: Request) -> object:
        keys.append(find_visitor_key())
        return None

    views.mark("page", read)
    headers = [(b"authorization", b"Basic OnNlY3JldA==")]  # ":secret"
    request = Request({"type": "http", "query_string": b"", "headers": headers})
    asyncio.run(views.read("page", request))
    assert keys == ["secret"]
    assert find_visitor_key() is None


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_scripts_of_a_document_are_named_before_its_content_is_known(encoding: str) -> None:
    views = FirstViews()
    mark = views.mark("runs", read_slowly := _SlowReader())
    html = f'<html><head><base href="./"></head><body><gradio-app>["{mark}"]</gradio-app>'
    sent: list[tuple[bool, bytes]] = []

    async def send_document(scope: Scope, receive: Receive, send: Send) -> None:
        await HTMLResponse(html)(scope, receive, send)

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append((read_slowly.has_begun, message["body"]))
        else:
            headers = Headers(raw=message["headers"])
            assert headers.get("content-encoding", "identity") == encoding
            assert "content-length" not in headers
            assert headers["cache-control"] == "no-store"

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/runs",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"accept-encoding", encoding.encode())],
    }
    frame = PageFrame(send_document, SimpleNamespace(theme_hash=""), views)  # type: ignore[arg-type]
    asyncio.run(frame(scope, None, collect))  # type: ignore[arg-type]
    assert [has_begun for has_begun, _ in sent] == [False, True]
    parts = [body for _, body in sent]
    if encoding == "gzip":
        unpacker = zlib.decompressobj(wbits=31)
        parts = [unpacker.decompress(body) for body in parts]
    assert b'href="page-assets/page.css' in parts[0]
    assert parts[1].endswith(b'["the content"]</gradio-app>'[1:])


class _SlowReader:
    """Reads the content of a page, and notes when it has begun."""

    def __init__(self) -> None:
        self.has_begun = False

    async def __call__(self, _: Request) -> object:
        self.has_begun = True
        await asyncio.sleep(0.01)
        return "the content"
