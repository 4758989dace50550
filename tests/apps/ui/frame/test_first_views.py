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
from apps.ui.frame.first_views import FirstViews, Frame
from apps.ui.frame.page_frame import PageFrame
from apps.ui.protection.visitor import find_visitor_key
from apps.ui.settings import UiSettings
from tests.apps.stub_api import StubApi
from tests.apps.ui.page_server import PageCaller, serve_page

FRAME = Frame("page-view", '<div class="frame">${value}</div>', ("models",))
REQUEST = Request({"type": "http", "query_string": b"run=1", "headers": []})


def test_content_is_json_that_is_safe_in_a_script_element() -> None:
    views = FirstViews()

    async def read(request: Request) -> object:
        return {"run": request.query_params["run"], "html": '</script><b a="1">'}

    views.add("page", FRAME, read)
    text = asyncio.run(views.read("page", REQUEST))
    assert "<" not in text
    assert json.loads(text) == {"run": "1", "html": '</script><b a="1">'}
    assert views.find("page") is FRAME
    assert views.find("other") is None


def test_frame_is_rendered_without_its_content() -> None:
    assert FRAME.render() == '<div class="frame"></div>'
    assert FRAME.list_scripts() == ["frames.js", "models.js"]


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

    views.add("page", FRAME, read, "Loading…")
    assert json.loads(asyncio.run(views.read("page", REQUEST))) == "Loading…"
    assert ("a fault" in caplog.text) == (fault == "broken")


def test_documents_have_what_their_address_names(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded")
    with serve_page(UiSettings(api_url=api.url)) as url:
        visitor = PageCaller(url)
        listed = visitor.read_first_content("/runs")
        run = visitor.read_first_content("/runs?run=ftjob-1")
        evaluations = visitor.read_first_content("/evaluate")
        models = visitor.read_first_content("/models")
        cluster = visitor.read_first_content("/cluster")
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


def test_documents_beyond_the_limit_come_without_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_views, "MAX_READING", 1)
    views = FirstViews()
    views.add("page", FRAME, read := _SlowReader(), "Loading…")

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

    views.add("page", FRAME, read)
    headers = [(b"authorization", b"Basic OnNlY3JldA==")]  # ":secret"
    request = Request({"type": "http", "query_string": b"", "headers": headers})
    asyncio.run(views.read("page", request))
    assert keys == ["secret"]
    assert find_visitor_key() is None


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_frame_and_scripts_are_sent_before_the_content_is_known(encoding: str) -> None:
    views = FirstViews()
    views.add("runs", FRAME, read_slowly := _SlowReader())
    html = '<html><head><base href="./"></head><body><gradio-app></gradio-app>'
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
    assert b'src="page-assets/models.js' in parts[0]
    assert b'<div id="page-view"><div class="frame"></div></div>' in parts[0]
    assert parts[1] == b'"the content"</script><gradio-app></gradio-app>'


class _SlowReader:
    """Reads the content of a page, and notes when it has begun."""

    def __init__(self) -> None:
        self.has_begun = False

    async def __call__(self, _: Request) -> object:
        self.has_begun = True
        await asyncio.sleep(0.01)
        return "the content"
