"""A server of one bucket, as far as pyarrow reads it: HEAD, GET with ranges, and lists."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

_MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"


@contextmanager
def serve_bucket(folder: Path) -> Iterator[str]:
    """Serve the files of a folder as the bucket `rows`; yields the query of its URLs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer_object(has_body=False)

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                self._answer_list(query.get("prefix", [""])[0])
            else:
                self._answer_object(has_body=True)

        def _answer_object(self, *, has_body: bool) -> None:
            file = folder / urlsplit(self.path).path.removeprefix("/rows").strip("/")
            if not file.is_file():
                self._answer(404, b"", {})
                return
            content = file.read_bytes()
            size, status, headers = len(content), 200, {"ETag": '"tag"'}
            if found := self.headers.get("Range"):
                first, last = found.removeprefix("bytes=").split("-")
                content = content[int(first) : int(last) + 1]
                status = 206
                headers["Content-Range"] = f"bytes {first}-{int(first) + len(content) - 1}/{size}"
            self._answer(status, content, headers, has_body=has_body)

        def _answer_list(self, prefix: str) -> None:
            keys = sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix))
            contents = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{(folder / key).stat().st_size}</Size>"
                "<LastModified>2025-01-01T00:00:00.000Z</LastModified></Contents>"
                for key in keys
            )
            body = (
                '<?xml version="1.0"?><ListBucketResult>'
                f"<IsTruncated>false</IsTruncated><KeyCount>{len(keys)}</KeyCount>{contents}"
                "</ListBucketResult>"
            )
            self._answer(200, body.encode(), {"Content-Type": "application/xml"})

        def _answer(
            self, status: int, body: bytes, headers: dict[str, str], *, has_body: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Last-Modified": _MODIFIED}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if has_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        port = server.server_address[1]
        yield f"?scheme=http&endpoint_override=127.0.0.1:{port}&region=local"
    finally:
        server.shutdown()
        server.server_close()
