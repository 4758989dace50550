"""Truncated, crafted and malformed forms, which leave no files behind."""

import asyncio
import gzip
import io
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from python_multipart.multipart import MultipartParser

from apps.errors import ApiError
from apps.http_api import file_upload
from apps.http_api.dependencies import Services
from apps.http_api.file_upload import IncomingFile
from storage.layout import StorageLayout
from training.data.readers import RowFile

pytestmark = pytest.mark.anyio
BOUNDARY = "b0und"
HEADERS = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
ROW = '{"text": "Zwölf."}\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def part(name: str, value: str | bytes, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
    content = value.encode() if isinstance(value, str) else value
    return head.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
PURPOSE = part("purpose", "fine-tune")


async def send(client: httpx.AsyncClient, *pieces: bytes) -> httpx.Response:
    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return await client.post("/v1/files", content=stream(), headers=HEADERS)


@pytest.mark.parametrize("size", [1, 7, 64, 1_000])
async def test_form_may_arrive_in_pieces_of_any_size(
    client: httpx.AsyncClient, services: Services, size: int
) -> None:
    whole = part("file", ROW * 20, "rows.jsonl") + PURPOSE + END
    pieces = (whole[start : start + size] for start in range(0, len(whole), size))
    answer = await send(client, *pieces)
    assert answer.status_code == 200, answer.text
    assert services.files.find_content(answer.json()["id"]).read_text() == ROW * 20
    assert answer.json()["bytes"] == len((ROW * 20).encode())


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((PURPOSE, END), "the form has no file"),
        ((part("file", ROW, "a"), END), "the form has no purpose: expected 'fine-tune'"),
        ((part("file", ROW, "a"), part("purpose", "vision"), END), "purpose is 'vision'"),
        (
            (PURPOSE, part("expires_after[anchor]", "created_at"), part("file", ROW, "a"), END),
            "'expires_after[anchor]' is not a field of an upload",
        ),
        ((PURPOSE, part("file", ROW, "a")), "the form is truncated"),
        ((PURPOSE, part("file", ROW, "a")[:-30]), "the form is truncated"),
        ((b"no form at all",), "the form cannot be read"),
        ((b"",), "the form is truncated"),
        ((PURPOSE, part("file", "", "a"), END), "the file is empty"),
        ((PURPOSE, part("file", ROW, "a"), part("file", ROW, "b"), END), "expected one file"),
        ((PURPOSE, part("other", ROW, "a"), END), "expected one file"),
        ((part("purpose", "x" * 2_000), END), "'purpose' has more than 1000 bytes"),
        ((PURPOSE * 20, END), "more than 16 parts"),
        ((part("x" * 2_000, "y"), END), "a header in the form has more than 1000 bytes"),
        ((PURPOSE, part("file", ROW, "a")[:-6] + b"\xc3\r\n", END), "is not text"),
    ],
)
async def test_invalid_form_is_refused_and_leaves_no_files(
    client: httpx.AsyncClient, layout: StorageLayout, pieces: tuple[bytes, ...], message: str
) -> None:
    answer = await send(client, *pieces)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert list(layout.files.iterdir()) == []


def write_parquet(rows: list[dict[str, str]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def pack_rows(num_rows: int) -> dict[str, bytes]:
    text = (ROW * num_rows).encode()
    return {
        "rows.jsonl.gz": gzip.compress(text),
        "rows.jsonl.zst": bytes(pa.Codec("zstd").compress(text, asbytes=True)),
        "rows.parquet": write_parquet([{"text": "Zwölf."}] * num_rows),
    }


PACKED = pack_rows(30)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("size", [1, 10_000])
async def test_compressed_files_are_stored_unchanged(
    client: httpx.AsyncClient, services: Services, name: str, size: int
) -> None:
    whole = PURPOSE + part("file", PACKED[name], name) + END
    answer = await send(
        client, *(whole[start : start + size] for start in range(0, len(whole), size))
    )
    assert answer.status_code == 200, answer.text
    path = services.files.find_content(answer.json()["id"])
    assert path.read_bytes() == PACKED[name]
    assert [record["text"] for _, record in RowFile(path).read()] == ["Zwölf."] * 30


@pytest.mark.parametrize("name", PACKED)
async def test_file_that_expands_beyond_limit_is_refused_and_leaves_no_files(
    client: httpx.AsyncClient, services: Services, layout: StorageLayout, name: str
) -> None:
    content = pack_rows(1000)[name]
    assert len(content) < services.max_upload_bytes == 10_000
    answer = await send(client, PURPOSE, part("file", content, name), END)
    assert answer.status_code == 413, answer.text
    message = answer.json()["error"]["message"]
    assert f"'{name}' unpacks to more than 10,000 bytes, which is the maximum" in message
    assert list(layout.files.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PACKED["rows.jsonl.gz"][:-9], "cannot be unpacked (gzip"),
        (gzip.compress(b"\xff\xff text"), "does not unpack to text (invalid start byte in UTF-8)"),
        (gzip.compress(PACKED["rows.parquet"]), "a compressed file that holds another packed one"),
        (PACKED["rows.parquet"][:200], "cannot be read as Parquet"),
        (b"\x1f\x8b", "cannot be unpacked (gzip"),
        (
            b"\xff",
            "is not text (invalid start byte in UTF-8); expected rows as JSON, JSONL, CSV, p",
        ),
        (b"PK\x03\x04\xff\xff", "rows is no ZIP archive that can be read"),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else ""
    ),  # no bytes: gzip writes the time into them
)
async def test_damaged_compressed_file_is_refused_and_leaves_no_files(
    client: httpx.AsyncClient, layout: StorageLayout, content: bytes, message: str
) -> None:
    answer = await send(client, PURPOSE, part("file", content, "rows"), END)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert list(layout.files.iterdir()) == []


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "", "text/plain"])
async def test_body_that_is_no_multipart_form_is_refused(
    client: httpx.AsyncClient, kind: str
) -> None:
    answer = await client.post("/v1/files", content=b"{}", headers={"content-type": kind})
    assert answer.status_code == 400
    assert "expected multipart/form-data" in answer.json()["error"]["message"]


async def test_overlong_boundary_gets_400(client: httpx.AsyncClient) -> None:
    kind = f"multipart/form-data; boundary={'b' * 5000}"
    answer = await client.post("/v1/files", content=b"--b--", headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "content-type"


async def test_interrupted_upload_leaves_no_files(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield part("file", ROW * 100, "rows.jsonl")[:-50]
        assert len(list(layout.files.iterdir())) == 1
        raise ConnectionResetError

    assert (await client.post("/v1/files", content=stream(), headers=HEADERS)).status_code == 500
    assert list(layout.files.iterdir()) == []


async def test_scratch_folder_of_killed_process_is_removed_by_next_upload(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    left = layout.files / ".upload-left" / "content"
    left.mkdir(parents=True)
    (left.parent / ".lock").touch()
    (left / "content").write_text("half a file")
    assert (await client.get("/v1/files")).json()["data"] == []
    answer = await send(client, PURPOSE, part("file", ROW, "a"), END)
    assert answer.status_code == 200
    assert [path.name for path in layout.files.iterdir()] == [answer.json()["id"]]


async def test_upload_on_full_disk_gets_507_and_leaves_no_files(
    client: httpx.AsyncClient, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def refuse(path: Path, *args: object, **options: object) -> object:
        if path.name == "content":
            raise OSError(28, os.strerror(28))
        return real(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    answer = await send(client, PURPOSE, part("file", ROW, "a"), END)
    assert answer.status_code == 507
    assert list(layout.files.iterdir()) == []


async def test_form_is_parsed_outside_event_loop_thread(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers = set()

    class NotingParser(MultipartParser):
        def write(self, data: bytes) -> int:
            parsers.add(threading.current_thread())
            return super().write(data)

    monkeypatch.setattr(file_upload, "MultipartParser", NotingParser)
    assert (await send(client, PURPOSE, part("file", ROW, "a"), END)).status_code == 200
    assert parsers
    assert threading.main_thread() not in parsers


async def test_unfinished_uploads_count_toward_storage_limit(services: Services) -> None:
    limits = services.limits.model_copy(update={"max_stored_bytes": 600_000})
    piece = part("file", ROW * 30_000, "rows.jsonl")[:400_000]

    async def receive(pause: asyncio.Event) -> int | None:
        """Begin a form that does not end; returns the status of its rejection."""

        async def stream() -> AsyncIterator[bytes]:
            yield piece
            await pause.wait()

        upload = IncomingFile(services.layout, services.files, 10**9, limits)
        try:
            await upload.receive(HEADERS["content-type"], stream())
        except ApiError as exc:
            return exc.status
        finally:
            upload.close()
        return None

    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    first = asyncio.create_task(receive(never))
    async with asyncio.timeout(30):
        while not any(path.stat().st_size for path in services.layout.files.rglob("content/*")):
            await asyncio.sleep(0.01)
    assert await receive(now) == 507
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await receive(now) == 400, "the space of the cancelled upload is not free"
