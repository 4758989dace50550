"""The page on a free port below a prefix, and calls of its functions in a browser's format."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.middleware.cached_files import CachedFiles
from apps.ui.page import build_http
from apps.ui.protection.access import PageGuard
from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer

PREFIX = "/ui"
TIMEOUT_S = 20


def build_page(settings: UiSettings) -> PageGuard:
    """Build the page inside an event loop, as a replica does; otherwise Gradio leaves one open.

    The loop runs in a separate thread, because browser tests have a loop in their own thread.
    """

    async def build() -> PageGuard:
        return build_http(settings)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, build()).result()


def mount_at_prefix(app: ASGIApp) -> ASGIApp:
    """Serve `app` below the prefix as Ray Serve and its proxy do, including its lifespan."""

    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif scope["path"].startswith(f"{PREFIX}/"):
            await app({**scope, "root_path": PREFIX}, receive, send)
        else:
            await PlainTextResponse("not found", 404)(scope, receive, send)

    return CachedFiles(mounted)


@dataclass(frozen=True)
class Result:
    """The result of a function call."""

    success: bool
    text: str

    @property
    def outputs(self) -> list[Any]:
        """The last values of the components that the function updates."""
        outputs: list[Any] = json.loads(self.text.rpartition("data: ")[2])["output"]["data"]
        return outputs


class PageCaller:
    """A visitor without a browser."""

    def __init__(
        self,
        url: str,
        query: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> None:
        self.url = url
        self.query = query or {}
        self.http = httpx.Client(base_url=url, timeout=TIMEOUT_S, auth=auth)
        self.config: dict[str, Any] = {}
        for path in (
            "/",
            "/runs",
            "/chat",
            "/compare",
            "/evaluate",
            "/classify",
            "/models",
            "/cluster",
        ):  # each has its own part of the configuration
            config = self.read_config(path)
            self.config.setdefault("components", []).extend(config["components"])
            self.config.setdefault("dependencies", []).extend(config["dependencies"])

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def read_config(self, path: str) -> dict[str, Any]:
        """Return the settings of Gradio's script in a document."""
        page = self.http.get(path).text
        text = page.partition("window.gradio_config = ")[2].partition(";</script>")[0]
        return dict(json.loads(text))

    def read_first_content(self, path: str) -> Any:
        """Return the content that a document has for its page."""
        page = self.http.get(path).text
        text = page.partition('id="first-content">')[2].partition("</script>")[0]
        return json.loads(text)

    def list_functions(self) -> dict[int, dict[str, Any]]:
        """Return every function of the page by its id."""
        return {entry["id"]: entry for entry in self.config["dependencies"]}

    def find_function(self, api_name: str) -> int:
        """Return the id of the function with an API name."""
        names = {entry["api_name"]: entry["id"] for entry in self.config["dependencies"]}
        return int(names[api_name])

    def find_component(self, elem_id: str) -> int:
        """Return the id of the component whose element has the id `elem_id`."""
        found = (c for c in self.config["components"] if c["props"].get("elem_id") == elem_id)
        return int(next(found)["id"])

    def join(self, fn_index: int, data: list[Any], **more: Any) -> httpx.Response:
        """Enqueue a function call; the session is in `more` or new."""
        body = {"fn_index": fn_index, "data": data, "session_hash": uuid.uuid4().hex, **more}
        return self.http.post("/gradio_api/queue/join", json=body, params=self.query)

    def call(self, fn_index: int, data: list[Any], **more: Any) -> Result:
        """Call a function and return its result, or the error response."""
        session = more.setdefault("session_hash", uuid.uuid4().hex)
        answer = self.join(fn_index, data, **more)
        if answer.is_error:
            return Result(success=False, text=answer.text)
        for event_id, result in self.follow(session):
            if event_id == answer.json()["event_id"]:
                return result
        raise AssertionError(f"function {fn_index} did not complete")

    def follow(self, session: str) -> Iterator[tuple[str, Result]]:
        """Yield event ids and results of a session's calls in the order in which they complete."""
        texts: dict[str | None, str] = {}
        events = self.http.stream("GET", "/gradio_api/queue/data", params={"session_hash": session})
        with events as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: "):
                    continue
                message = json.loads(line.removeprefix("data: "))
                event_id = message.get("event_id")
                texts[event_id] = texts.get(event_id, "") + line
                if message["msg"] == "process_completed":
                    yield event_id, Result(message["success"], texts[event_id])

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file and return the value that a browser passes to a function."""
        answer = self.http.post("/gradio_api/upload", files={"files": (name, content)})
        answer.raise_for_status()
        return name_file(answer.json()[0], name)


def name_file(path: str, name: str = "rows.jsonl", **more: Any) -> dict[str, Any]:
    """Return the value by which a visitor's call can name a file of the server."""
    return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}, **more}


@contextmanager
def serve_page(settings: UiSettings) -> Iterator[str]:
    """Run the page and yield its address."""
    with LocalServer(mount_at_prefix(build_page(settings))) as url:
        yield f"{url}{PREFIX}"
