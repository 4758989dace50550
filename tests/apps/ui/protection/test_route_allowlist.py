"""Server resources that a visitor of the page can reach beyond the page's own functions."""

import asyncio
import gzip
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Mount, Route

from apps.client.client import ApiClient
from apps.ui.page import build_gradio
from apps.ui.protection.uploads import UPLOAD_LIFETIME_S, ForeignFileError, UploadFolder
from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer, StubApi, build_stub
from tests.apps.ui.page_server import (
    PREFIX,
    PageCaller,
    Result,
    mount_at_prefix,
    name_file,
    serve_page,
)

DOCUMENT = Path(__file__).parents[4] / "docs" / "security.md"
JOIN = "/gradio_api/queue/join"
SECRET = "the-secret-of-another-user"


@pytest.fixture(scope="module")
def api() -> Iterator[StubApi]:
    stub = StubApi()
    with LocalServer(build_stub(stub)) as url:
        stub.url = url
        yield stub


@pytest.fixture(scope="module")
def page_url(api: StubApi) -> Iterator[str]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        yield url


@pytest.fixture
def visitor(page_url: str) -> Iterator[PageCaller]:
    visitor = PageCaller(page_url)
    yield visitor
    visitor.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.jsonl"
    path.write_text(SECRET)
    return path


def describe_upload(path: str) -> dict[str, Any]:
    """Return what the script of the page sends to have an upload added."""
    return {"event_data": {"action": "add", "path": path}}


def add(visitor: PageCaller, path: str) -> Result:
    return visitor.call(visitor.find_function("perform_action"), [], **describe_upload(path))


def test_own_upload_is_imported_and_removed(visitor: PageCaller, api: StubApi) -> None:
    file = visitor.upload("rows.jsonl", b'{"text": "x"}')
    result = add(visitor, file["path"])
    assert '"is_done":true' in result.text, result.text
    assert api.files[0]["filename"] == "rows.jsonl"
    assert not Path(file["path"]).exists(), "the page kept the imported file"


def test_upload_function_refuses_other_files(
    visitor: PageCaller, api: StubApi, secret: Path
) -> None:
    before = len(api.files)
    assert not add(visitor, str(secret)).success
    assert len(api.files) == before


def build_foreign_inputs(path: str) -> dict[str, Any]:
    """Return component inputs that name a file, by shape."""
    file = name_file(path)
    return {
        "file": file,
        "files": [file],
        "message": [
            {
                "role": "user",
                "metadata": None,
                "options": None,
                "content": [{"type": "file", "file": file}],
            }
        ],
        "component": [
            {
                "role": "user",
                "metadata": None,
                "options": None,
                "content": [
                    {
                        "type": "component",
                        "component": "image",
                        "value": file,
                        "constructor_args": {},
                        "props": {},
                    }
                ],
            }
        ],
        "nested": {"a": [{"b": file}]},
    }


@pytest.mark.parametrize("shape", list(build_foreign_inputs("")))
def test_functions_refuse_server_files_as_input(
    visitor: PageCaller, secret: Path, shape: str, api: StubApi
) -> None:
    """The file is not copied to a folder of the page, from which a link could serve it."""
    functions = visitor.list_functions()
    before = len(api.files)
    assert functions
    for fn_index, function in functions.items():
        for at in range(len(function["inputs"])):
            data: list[Any] = [None] * len(function["inputs"])
            data[at] = build_foreign_inputs(str(secret))[shape]
            answer = visitor.join(fn_index, data)
            assert answer.status_code == 400, (fn_index, function["api_name"], answer.text)
            assert SECRET not in answer.text
        foreign = {"event_data": build_foreign_inputs(str(secret))[shape]}
        answer = visitor.join(fn_index, [None] * len(function["inputs"]), **foreign)
        assert answer.status_code == 400, (fn_index, function["api_name"], answer.text)
    assert len(api.files) == before


def test_chat_result_contains_no_link_to_server_file(visitor: PageCaller, secret: Path) -> None:
    functions = [entry for entry in visitor.list_functions().values() if entry["inputs"]]
    history = build_foreign_inputs(str(secret))["message"]
    for function in functions:
        data = [history for _ in function["inputs"]]
        result = visitor.call(function["id"], data)
        for path in re.findall(r"file=([^\"\\]+)", result.text):
            answer = visitor.http.get(f"/gradio_api/file={path}")
            assert SECRET not in answer.text, function["api_name"]
        assert not result.success


@pytest.fixture(scope="module")
def unguarded(api: StubApi) -> Iterator[PageCaller]:
    """A visitor of the page without the page's middleware, to test what Gradio itself rejects."""
    uploads = UploadFolder()

    async def build() -> FastAPI:
        return build_gradio(UiSettings(api_url=api.url), ApiClient(api.url), uploads)

    with LocalServer(mount_at_prefix(asyncio.run(build()))) as url:
        visitor = PageCaller(f"{url}{PREFIX}")
        yield visitor
        visitor.close()


def test_only_uploads_are_imported_without_middleware(
    unguarded: PageCaller, api: StubApi, secret: Path
) -> None:
    """Tested without the middleware, which might miss a new way to name a file."""
    before = len(api.files)
    assert not add(unguarded, str(secret)).success
    assert len(api.files) == before
    upload = unguarded.upload("rows.jsonl", b'{"text": "x"}')
    assert '"is_done":true' in add(unguarded, upload["path"]).text
    assert len(api.files) == before + 1


@pytest.mark.parametrize(
    "path",
    [
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        "/proc/self/fd/0",
        "relative.jsonl",
        "http://127.0.0.1:9/rows.jsonl",
        "https://example.com/rows.jsonl",
        "\0",
    ],
)
def test_device_and_url_paths_are_refused_as_uploads(visitor: PageCaller, path: str) -> None:
    answer = visitor.join(visitor.find_function("perform_action"), [], **describe_upload(path))
    assert answer.status_code == 400


def test_upload_must_be_regular_file_in_upload_folder(visitor: PageCaller, secret: Path) -> None:
    """A FIFO in the folder is not opened, and a link in it is not followed."""
    upload = Path(visitor.upload("rows.jsonl", b"{}")["path"])
    folder = upload.parent
    fifo, link, linked_folder = folder / "fifo", folder / "link", folder / "folder"
    os.mkfifo(fifo)
    link.symlink_to(secret)
    linked_folder.symlink_to(secret.parent)
    outside = f"{folder}/../../../{secret.name}"
    function = visitor.find_function("perform_action")
    for path in (fifo, link, linked_folder / secret.name, folder, outside):
        answer = visitor.join(function, [], **describe_upload(str(path)))
        assert answer.status_code == 400, path
    assert visitor.join(function, [], **describe_upload(str(upload))).is_success


def test_upload_folder_is_private(visitor: PageCaller) -> None:
    upload = Path(visitor.upload("rows.jsonl", b"{}")["path"])
    root = upload.parent.parent
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert root.stat().st_uid == os.getuid()


def send_upload(visitor: PageCaller, content: bytes) -> int:
    answer = visitor.http.post("/gradio_api/upload", files={"files": ("rows.jsonl", content)})
    return answer.status_code


def test_upload_without_files_write_permission_gets_403(
    visitor: PageCaller, api: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "permissions", ["files.read"])
    assert send_upload(visitor, b"{}") == 403
    monkeypatch.setattr(api, "permissions", ["files.write"])
    assert send_upload(visitor, b"{}") == 200


def test_upload_beyond_total_size_limit_gets_507(
    visitor: PageCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UploadFolder, "count_bytes", lambda _: 10**15)
    assert send_upload(visitor, b"{}") == 507


def test_upload_folder_counts_recent_files_and_removes_expired_ones(tmp_path: Path) -> None:
    uploads = UploadFolder(tmp_path)
    for name, age_s in (("new", 0), ("old", UPLOAD_LIFETIME_S + 10)):
        (uploads.path / name).write_bytes(bytes(100))
        os.utime(uploads.path / name, (time.time() - age_s,) * 2)
    assert 100 <= uploads.count_bytes() < 200  # plus the lock file of the folder
    assert not (uploads.path / "old").exists()
    uploads.remove()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/assets/" + "x" * 300, 404),
        ("/static/" + "x" * 5000, 404),
        ("/gradio_api/queue/data", 400),
        ("/gradio_api/queue/data?session_hash=", 400),
        ("/gradio_api/queue/data?session_hash=%00", 400),
        ("/gradio_api/queue/data?session_hash=" + "a" * 101, 400),
    ],
)
def test_invalid_paths_and_session_hashes_are_refused(
    visitor: PageCaller, path: str, status: int
) -> None:
    assert visitor.http.get(path).status_code == status


@pytest.mark.parametrize("kind", ["fifo", "link", "device", "folder", "outside"])
def test_upload_folder_opens_only_own_regular_files(tmp_path: Path, kind: str) -> None:
    uploads = UploadFolder(tmp_path)
    (tmp_path / "outside").write_text(SECRET)
    paths = {name: uploads.path / name for name in ("fifo", "link", "folder")}
    os.mkfifo(paths["fifo"])
    paths["link"].symlink_to(tmp_path / "outside")
    paths["folder"].mkdir()
    paths |= {"device": Path("/dev/zero"), "outside": tmp_path / "outside"}
    with pytest.raises(ForeignFileError):
        uploads.open(str(paths[kind]))
    uploads.remove()


def test_upload_folder_of_killed_page_is_removed_by_next_page(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from apps.ui.protection.uploads import UploadFolder; "
        f"uploads = UploadFolder(pathlib.Path({str(tmp_path)!r})); "
        "(uploads.path / 'rows').write_text('x'); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert list(tmp_path.rglob("rows"))
    UploadFolder(tmp_path).remove()
    assert list(tmp_path.rglob("rows")) == []


def test_large_compressed_or_deeply_nested_call_is_refused(visitor: PageCaller) -> None:
    large = visitor.join(visitor.find_function("ask"), ["x" * 2_000_000, None, None])
    assert large.status_code == 413
    headers = {"content-encoding": "gzip"}
    answer = visitor.http.post(JOIN, content=gzip.compress(b"{}"), headers=headers)
    assert answer.status_code == 415
    assert visitor.http.post(JOIN, content=b"[" * 100_000).status_code == 400


CALL: dict[str, Any] = {"fn_index": 0, "data": [], "session_hash": "abc", "event_id": "x"}


@pytest.mark.parametrize(
    "change",
    [
        {"fn_index": -1},
        {"fn_index": 999},
        {"fn_index": 10**30},
        {"fn_index": None},
        {"fn_index": "0"},
        {"fn_index": True},
        {"session_hash": ""},
        {"session_hash": "\0"},
        {"session_hash": "x" * 101},
        {"session_hash": None},
        {"session_hash": "\ud800"},
        {"event_id": "\ud800"},
        {"data": ["\ud800"]},
        {"event_data": {"\ud800": 1}},
    ],
)
@pytest.mark.parametrize("route", [JOIN, "/gradio_api/cancel"])
def test_call_with_invalid_field_is_refused(
    visitor: PageCaller, route: str, change: dict[str, Any]
) -> None:
    answer = visitor.http.post(route, content=json.dumps({**CALL, **change}))
    assert answer.status_code == 400, answer.text
    assert isinstance(answer.json()["detail"], str)  # which Gradio's script shows


@pytest.mark.parametrize("body", [b"[]", b"5", b"null", b"\xff", b"{}", b""])
@pytest.mark.parametrize("route", [JOIN, "/gradio_api/cancel"])
def test_body_that_is_no_call_is_refused(visitor: PageCaller, route: str, body: bytes) -> None:
    assert visitor.http.post(route, content=body).status_code == 400


def list_routes(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield method and path of every route of an application and of its mounts."""
    for route in routes:
        if isinstance(route, Mount):
            yield from list_routes(route.routes, prefix + route.path.rstrip("/"))
        else:
            assert isinstance(route, Route), (
                f"{route} is a type of route that this test does not support"
            )
            for method in sorted(route.methods or ()):
                yield method, prefix + route.path


@pytest.fixture(scope="module")
def routes() -> set[tuple[str, str]]:
    uploads = UploadFolder()

    async def build() -> FastAPI:
        return build_gradio(UiSettings(), ApiClient("http://127.0.0.1:8000"), uploads)

    app = asyncio.run(build())
    uploads.remove()
    return set(list_routes(app.routes))


def read_documented_routes() -> tuple[set[str], set[str]]:
    """Return the open and the closed routes in the tables of docs/security.md."""
    text = DOCUMENT.read_text().partition("## The page")[2].partition("\n## ")[0]
    opened, _, closed = text.partition("### Closed routes")
    return tuple(  # type: ignore[return-value]
        set(re.findall(r"`((?:GET|POST|HEAD) /[^`]*)`", part)) for part in (opened, closed)
    )


def test_each_route_is_documented_as_open_or_closed(routes: set[tuple[str, str]]) -> None:
    """Routes that a new version of Gradio adds stay closed until they have been reviewed."""
    opened, closed = read_documented_routes()
    assert not opened & closed
    live = {f"{method} {path.rstrip('/') or '/'}" for method, path in routes if method != "HEAD"}
    assert live == opened | closed


def test_closed_routes_get_404(visitor: PageCaller, routes: set[tuple[str, str]]) -> None:
    opened, _ = read_documented_routes()
    for method, path in sorted(routes):
        name = f"{method} {path.rstrip('/') or '/'}"
        if method == "HEAD" or name in opened:
            continue
        sample = re.sub(r"\{[^}]*\}", "x", path)
        answer = visitor.http.request(method, sample)
        assert (answer.status_code, answer.text) == (404, "not found"), name


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/FILE=/etc/passwd",
        "//gradio_api/file=/etc/passwd",
        "/assets/../gradio_api/info",
        "/gradio_api/%66ile=/etc/passwd",
        "/gradio_api/queue/join/",
        "/gradio_api/call/add_file",
        "/gradio_api/run/predict",
        "/gradio_api/mcp/sse",
    ],
)
def test_other_spellings_do_not_reach_closed_routes(visitor: PageCaller, path: str) -> None:
    for method in ("GET", "POST", "PUT", "OPTIONS"):
        answer = visitor.http.request(method, path)
        assert answer.status_code == 404, (method, path)


def test_files_outside_asset_folders_are_not_served(visitor: PageCaller) -> None:
    for path in ("/assets/..%2f..%2findex.html", "/static/%2e%2e/%2e%2e/routes.py", "/assets//etc"):
        assert visitor.http.get(path).status_code in (403, 404), path


def test_each_function_is_documented_and_private(visitor: PageCaller) -> None:
    """Functions are called by number through one route; docs/security.md lists each of them."""
    functions = visitor.list_functions().values()
    document = DOCUMENT.read_text().partition("## The page")[2].partition("\n## ")[0]
    for function in functions:
        assert function["queue"] or not function["backend_fn"], function["api_name"]
        name = re.sub(r"_\d+$", "", function["api_name"] or "")
        assert function["api_visibility"] == "private"
        if function["backend_fn"]:
            assert f"`{name}`" in document, name


def test_unexpected_error_details_are_not_sent_to_visitor(visitor: PageCaller) -> None:
    result = visitor.call(visitor.find_function("refresh_chat"), [])
    assert not result.success
    assert "Traceback" not in result.text
    assert "refresh" not in result.text.partition("process_completed")[2]
