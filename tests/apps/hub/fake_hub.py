"""A small real server with the part of the hub's HTTP API that transfers of models need."""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = "c" * 40
_REVISIONS = ("main", "v1", COMMIT)
_FILE = re.compile(r"/(?P<id>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
_INFO = re.compile(
    r"/api/models/(?P<id>[^/]+(?:/[^/]+)??)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?"
)


@dataclass
class FakeRepository:
    """A repository: its files, and how it misbehaves."""

    files: dict[str, bytes]
    is_gated: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)  # listed in place of the real ones
    sent: Mapping[str, bytes] = field(default_factory=dict)  # sent in place of the real content
    breaks_after: int | None = None  # bytes of the weights after which a connection is closed
    hold: threading.Event | None = None  # what the weights wait for, after their first half

    def list_size(self, name: str) -> int:
        return self.sizes.get(name, len(self.files[name]))


class FakeHub(ThreadingHTTPServer):
    """The hub; repositories have the branch 'main' and the tag 'v1' of the same commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HubRequest)
        self.repositories: dict[str, FakeRepository] = {}
        self.redirects: dict[str, str] = {}  # new ids by former ones
        self.moved_writes: dict[str, str] = {}  # as redirects, but only of POST requests
        self.is_public = False  # of the repository that tests push to
        self.is_silent = threading.Event()  # whether it does not answer
        self.refusal = "You don't have the rights"
        self.tokens: set[str | None] = set()
        self.requested: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.refuses_writes = False
        self.cards: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}  # that were pushed

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, hub_id: str, folder: Path, **changes: Any) -> FakeRepository:
        """Add a repository with the files of a folder."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.repositories[hub_id] = FakeRepository(files, **changes)
        return self.repositories[hub_id]


@contextmanager
def serve_fake_hub() -> Iterator[FakeHub]:
    """Serve a hub without repositories."""
    with FakeHub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _HubRequest(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def read(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            content = b""
            while length := int(self.rfile.readline(), 16):
                content += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def note(self) -> str:
        """Record a request, and return its path without the query; wait while the hub is silent."""
        while self.server.is_silent.is_set():
            time.sleep(0.05)
        path = unquote(self.path.partition("?")[0])
        self.server.tokens.add(self.headers.get("authorization"))
        self.server.requested.append(f"{self.command} {path}")
        return path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.note()
        if file := _FILE.fullmatch(path):
            self.send_file(file["id"], file["revision"], file["name"])
        elif info := _INFO.fullmatch(path):
            self.describe(info["id"], info["what"], info["revision"] or "main")
        else:
            self.answer({"error": f"no {path} here"}, 404)

    def find(self, hub_id: str, revision: str) -> FakeRepository | None:
        """Return a repository; without it, refuse the request."""
        repository = self.server.repositories.get(hub_id)
        if hub_id in self.server.redirects:
            place = self.path.replace(hub_id, self.server.redirects[hub_id])
            self.answer({}, 307, location=f"{self.server.url}{place}")
        elif repository is None and hub_id == "me/tuned":  # that tests push to
            self.answer(
                {
                    "id": hub_id,
                    "sha": "0" * 40,
                    "private": not self.server.is_public,
                    "siblings": [{"rfilename": name} for name in self.server.files],
                }
            )
        elif repository is None:
            self.answer({"error": "Repository not found"}, 401, x_error_code="RepoNotFound")
        elif repository.is_gated:
            self.answer({"error": "Access is restricted"}, 403, x_error_code="GatedRepo")
        elif revision not in _REVISIONS:
            self.answer({"error": "Invalid rev id"}, 404, x_error_code="RevisionNotFound")
        else:
            return repository
        return None

    def describe(self, hub_id: str, what: str | None, revision: str) -> None:
        repository = self.find(hub_id, revision)
        if repository is None:
            return
        listed = []
        for name, content in repository.files.items():
            size = repository.list_size(name)
            oid = hashlib.sha256(content).hexdigest()
            lfs = {"sha256": oid, "oid": oid, "size": size, "pointerSize": 130}
            file = {"rfilename": name, "path": name, "type": "file", "size": size, "oid": oid[:40]}
            listed.append({**file, "lfs": lfs} if _is_large(name) else file)
        self.answer(listed if what == "tree" else {"id": hub_id, "sha": COMMIT, "siblings": listed})

    def send_file(self, hub_id: str, revision: str, name: str) -> None:
        repository = self.find(hub_id, revision)
        if repository is None:
            return
        if name not in repository.files:
            self.answer({"error": "Entry not found"}, 404, x_error_code="EntryNotFound")
            return
        content = repository.sent.get(name, repository.files[name])
        start = int((self.headers.get("range") or "bytes=0-")[6:].rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("content-length", str(len(content) - start))
        if start:
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_header("content-range", span)
        self.end_headers()
        if self.command == "HEAD":
            return
        if not _is_large(name):
            self.wfile.write(content[start:])
            return
        if repository.breaks_after is not None:
            self.wfile.write(content[start : start + repository.breaks_after])
            self.close_connection = True
            return
        half = len(content) // 2 + start
        self.wfile.write(content[start:half])
        self.wfile.flush()
        if repository.hold is not None:
            assert repository.hold.wait(60)
        self.wfile.write(content[half:])

    def do_PUT(self) -> None:
        self.server.blobs[self.path.rpartition("/")[2]] = self.read()
        self.answer({})

    def do_POST(self) -> None:
        path = self.note()
        content = self.read()
        moved = {**self.server.redirects, **self.server.moved_writes}
        former = next((one for one in moved if one in path), None)
        if self.server.refuses_writes:
            self.answer({"error": self.server.refusal}, 403)
        elif former is not None:
            place = path.replace(former, moved[former])
            self.answer({}, 307, location=f"{self.server.url}{place}")
        elif path == "/api/validate-yaml":
            self.server.cards.append(json.loads(content)["content"])
            self.answer({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self.server.created.append(json.loads(content))
            self.answer({"url": f"{self.server.url}/me/tuned"})
        elif "/preupload/" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if _is_large(file["path"]) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(content)["files"]
            ]
            self.answer({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**entry, "actions": {"upload": {"href": f"{self.server.url}/lfs/{entry['oid']}"}}}
                for entry in json.loads(content)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            self.commit(content)
            self.answer(
                {
                    "success": True,
                    "commitOid": "1" * 40,
                    "commitUrl": f"{self.server.url}/me/tuned/commit/{'1' * 40}",
                    "hookOutput": "",
                }
            )
        else:
            self.answer({"error": f"no {path} here"}, 404)

    def commit(self, content: bytes) -> None:
        for line in map(json.loads, content.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del self.server.files[value["path"]]


def _is_large(name: str) -> bool:
    return name.endswith(".safetensors")
