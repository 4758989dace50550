"""Models and aliases over HTTP: upload, promotion, rollback, download, deletion."""

import asyncio
import errno
import gzip
import io
import json
import os
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from apps.fine_tuning.index.run_lookup import name_model
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.http_api.routes.models import put_model
from serving.store.export import stream_archive
from serving.store.import_process import ImportCheckError
from storage import durable
from tests.apps.conftest import add_job
from tests.apps.stub_api import LocalServer
from tests.damage import damage
from tests.peft_adapters import write_adapter

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("preloaded_check")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_tar(folder: Path, root: str = "model") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, root)
    return buffer.getvalue()


def make_zip(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__MACOSX/._config.json", b"\0")
        archive.writestr(".DS_Store", b"\0")
        for path in folder.iterdir():
            archive.write(path, path.name)
    return buffer.getvalue()


@pytest.fixture
def source(tmp_path: Path, tiny_model: Path) -> Path:
    """A copy of a model folder that a test may modify."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in tiny_model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


async def put(client: httpx.AsyncClient, model_id: str, content: bytes) -> httpx.Response:
    return await client.put(f"/v1/models/{model_id}", content=content)


async def read_message(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


async def test_uploaded_model_and_downloaded_archive_match(
    client: httpx.AsyncClient, services: Services, source: Path
) -> None:
    for model_id, content in (("a", make_tar(source)), ("b", make_zip(source))):
        answer = await put(client, model_id, content)
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"] == model_id
        for path in source.iterdir():
            kept = (services.models.get(model_id).path / path.name).read_bytes()
            if path.name in ("config.json", "generation_config.json", "tokenizer_config.json"):
                assert json.loads(kept).items() <= json.loads(path.read_bytes()).items()
            else:
                assert kept == path.read_bytes()
    given = await client.get("/v1/models/a/archive", params={"format": "zip"})
    assert given.content == b"".join(stream_archive(services.models.get("a"), "zip"))
    assert given.headers["content-disposition"] == 'attachment; filename="a.zip"'
    assert await read_message(await put(client, "a", make_tar(source)), 409) == (
        "'a' is published already; model ids are not reused"
    )


async def test_adapter_is_imported_for_its_base_model(
    client: httpx.AsyncClient, services: Services, source: Path, tmp_path: Path
) -> None:
    adapter = make_tar(write_adapter(source, tmp_path / "adapter"))
    base = {"base_model": "latest"}
    answer = await client.put("/v1/models/a", params=base, content=adapter)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["kind"], shown["base_model"], shown["base"]) == ("adapter", "tiny", False)
    assert (await client.get("/v1/models/a")).json() == shown
    models = (await client.get("/v1/models")).json()["data"]
    kinds = {model["id"]: (model["kind"], model.get("base_model")) for model in models}
    assert kinds == {"a": ("adapter", "tiny"), "tiny": ("model", None)}

    message = await read_message(await put(client, "b", adapter), 400)
    assert message.startswith("the adapter names no base model in a lineage.json of Tuneserve")
    answer = await client.put("/v1/models/b", params={"base_model": "none"}, content=adapter)
    assert "no model or alias is called 'none'" in await read_message(answer, 400)
    assert answer.json()["error"]["param"] == "base_model"
    answer = await client.put("/v1/models/b", params=base, content=make_tar(source))
    assert (await read_message(answer, 400)).startswith("base_model is 'tiny', and the model to be")
    services.models.remove_alias("latest")
    message = await read_message(await client.delete("/v1/models/tiny"), 409)
    assert message.startswith("model 'tiny' is the base model of adapters, ")
    for model_id in ("a", "tiny"):
        assert (await client.delete(f"/v1/models/{model_id}")).status_code == 200


@pytest.mark.parametrize("fault", ["gone", "cut"])
async def test_archive_of_damaged_model_gets_500_and_is_logged(
    client: httpx.AsyncClient, services: Services, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(services.models.get("tiny").path / "model.safetensors", fault)
    answer = await client.get("/v1/models/tiny/archive")
    assert "model.safetensors" in await read_message(answer, 500)
    assert answer.json()["error"]["code"] == "model_damaged"
    assert "model.safetensors" in caplog.text


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_damage_found_during_download_closes_connection(services: Services, kind: str) -> None:
    damage(services.models.get("tiny").path / "model.safetensors", "flipped")
    with (
        LocalServer(build_http(services, None)) as url,
        httpx.stream(
            "GET", f"{url}/v1/models/tiny/archive?format={kind}", trust_env=False
        ) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["transfer-encoding"] == "chunked"
        with pytest.raises(
            httpx.RemoteProtocolError, match=r"^peer closed connection .*incomplete chunked read"
        ):
            answer.read()


async def test_unsafe_or_incomplete_model_archive_is_refused(
    client: httpx.AsyncClient, services: Services, source: Path, tmp_path: Path
) -> None:
    (source / "pytorch_model.bin").write_bytes(b"x")
    message = await read_message(await put(client, "a", make_tar(source)), 400)
    assert "pytorch_model.bin may hold pickled weights" in message
    (source / "pytorch_model.bin").unlink()

    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "x.Y"}}))
    message = await read_message(await put(client, "a", make_tar(source)), 400)
    assert "asks for code of the model's own ('auto_map')" in message
    (source / "config.json").write_text(json.dumps(config))

    (source / "leads-away").symlink_to("/etc/passwd")
    message = await read_message(await put(client, "a", make_tar(source)), 400)
    assert message == "'model/leads-away' in the archive is neither a file nor a folder"
    (source / "leads-away").unlink()

    message = await read_message(await put(client, "a", make_tar(source, "../away")), 400)
    assert "is outside the model's folder" in message
    message = await read_message(await put(client, "a", b"no archive"), 400)
    assert "not a whole tar (not compressed) or zip archive" in message
    (source / "config.json").unlink()
    message = await read_message(await put(client, "a", make_tar(source)), 400)
    assert "it has no config.json" in message
    assert [model.id for model in services.models.list_models()] == ["tiny"]
    assert not (tmp_path / "storage" / "away").exists()
    assert [path.name for path in services.layout.models.iterdir()] == ["tiny"]


async def test_archive_that_expands_excessively_is_refused(client: httpx.AsyncClient) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", bytes(60_000_000))
    message = await read_message(await put(client, "a", buffer.getvalue()), 400)
    assert "far more than its size" in message


def make_compressed(source: Path) -> bytes:
    return gzip.compress(make_tar(source))


def make_cut_tar(source: Path) -> bytes:
    return make_tar(source)[:5000]


def make_cut_zip(source: Path) -> bytes:
    return make_zip(source)[:-40]


def make_flipped_zip(source: Path) -> bytes:
    content = bytearray(make_zip(source))
    content[400:420] = bytes(20)
    return bytes(content)


def make_locked_zip(source: Path) -> bytes:
    content = bytearray(make_zip(source))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset] |= 1  # "encrypted"
            place = content.find(signature, place + 4)
    return bytes(content)


def make_colliding_tar(source: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, "model")
        for name in ("model/config.json/x", "y" * 300):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return buffer.getvalue()


def make_backward_tar(source: Path) -> bytes:
    """Build an archive with an entry of negative size, which moves a reader backwards."""
    first, back = tarfile.TarInfo("model/a"), tarfile.TarInfo(".hidden")
    block = bytearray(back.tobuf())
    block[124:136] = (-512).to_bytes(12, "big", signed=True)  # the base-256 form of a size
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return first.tobuf() + bytes(block) + bytes(1024)


def make_many_files(source: Path) -> bytes:
    return b"".join(tarfile.TarInfo(f".{number}").tobuf() for number in range(10_001))


def make_folder_for_a_file(source: Path) -> bytes:
    (source / "lineage.json").mkdir()
    return make_tar(source)


def make_future(source: Path) -> bytes:
    (source / "lineage.json").write_text('{"created_at": 1e30}')
    return make_tar(source)


def make_deep_json(source: Path) -> bytes:
    (source / "config.json").write_text('{"a":' * 100_000)
    return make_tar(source)


def make_huge_header(source: Path) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, 1 << 34
    return entry.tobuf() + bytes(1024)


@pytest.mark.parametrize(
    "make",
    [
        make_compressed,
        make_cut_tar,
        make_cut_zip,
        make_flipped_zip,
        make_locked_zip,
        make_colliding_tar,
        make_huge_header,
        make_backward_tar,
        make_many_files,
        make_folder_for_a_file,
        make_future,
        make_deep_json,
    ],
)
async def test_invalid_archive_gets_400(
    client: httpx.AsyncClient, services: Services, source: Path, make: Callable[[Path], bytes]
) -> None:
    message = await read_message(await put(client, "a", make(source)), 400)
    assert str(services.layout.root) not in message
    assert [path.name for path in services.layout.models.iterdir()] == ["tiny"]


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.EIO, 500),
        (errno.EMFILE, 500),
        (errno.EROFS, 500),
        (errno.EACCES, 500),
        (errno.ENOSPC, 507),
        (errno.EDQUOT, 507),
        (errno.ENAMETOOLONG, 400),
    ],
)
async def test_operating_system_error_during_extraction_gets_its_status(
    client: httpx.AsyncClient,
    services: Services,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], bytes],
    number: int,
    status: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for kind in (tarfile.TarFile, zipfile.ZipFile):
        monkeypatch.setattr(kind, "extractall", fail)
    await read_message(await put(client, "a", make(source)), status)
    assert [path.name for path in services.layout.models.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (OSError(errno.EIO, "Input/output error"), 500),
        (OSError(errno.ENOSPC, "No space left on device"), 507),
        (ValueError("a bug of ours"), 500),
        (ImportCheckError("the check of a model was ended by signal 9"), 500),
    ],
    ids=repr,
)
async def test_error_after_validation_of_model_gets_its_status(
    services: Services,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    status: int,
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(durable, "seal_directory", fail)
    transport = httpx.ASGITransport(build_http(services, None), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        message = await read_message(await put(client, "a", make_tar(source)), status)
    assert "a bug of ours" not in message
    assert [path.name for path in services.layout.models.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("template", "reason"),
    [("{{ 'a' * 2000000000 }}", "needed more than 256 MiB of memory"), ("{% if %}", "Expected an")],
)
async def test_model_with_unusable_chat_template_is_refused(
    client: httpx.AsyncClient, services: Services, source: Path, template: str, reason: str
) -> None:
    (source / "chat_template.jinja").write_text(template)
    message = await read_message(await put(client, "a", make_tar(source)), 400)
    assert "the chat template" in message
    assert reason in message
    assert services.models.find("a") is None


async def test_taken_or_invalid_model_id_is_refused(
    client: httpx.AsyncClient, services: Services
) -> None:
    """This includes the id of the model that an unfinished job is going to publish."""
    record = add_job(services.layout, "tiny").read_record()

    taken = {"tiny": 409, name_model(record): 409, "latest": 400, ".x": 400, "a b": 400}
    for model_id, status in taken.items():
        answer = await put(client, model_id, b"x")
        assert answer.status_code == status, (model_id, answer.text)
    assert (
        "is what job 'ftjob-000001' calls its model"
        in (await put(client, name_model(record), b"")).text
    )


async def test_alias_cannot_take_model_name_reserved_by_job(
    client: httpx.AsyncClient, services: Services
) -> None:
    record = add_job(services.layout, "tiny").read_record()
    name = name_model(record)
    message = await read_message(
        await client.put(f"/v1/aliases/{name}", json={"model": "tiny"}), 409
    )
    assert message == f"'{name}' is what job 'ftjob-000001' calls its model"


async def test_lineage_is_returned_as_stored(client: httpx.AsyncClient, source: Path) -> None:
    lineage = {"run_id": "r", "data": {"sha256": "ab", "num_rows": 3}, "spec": {"epochs": 2}}
    (source / "lineage.json").write_text(json.dumps(lineage))
    await put(client, "a", make_tar(source))
    assert (await client.get("/v1/models/a/lineage")).json() == lineage
    assert (await client.get("/v1/models/tiny/lineage")).json() == {}


async def test_large_body_is_accepted_only_for_models(client: httpx.AsyncClient) -> None:
    answer = await put(client, "a", bytes(10_000_001))
    assert "expected at most 10,000,000" in await read_message(answer, 413)

    async def stream() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield bytes(1_000_000)

    answer = await client.put("/v1/models/a", content=stream())
    assert answer.status_code == 413
    answer = await client.post("/v1/files", content=bytes(200_000))
    assert answer.status_code == 413


async def test_completed_upload_is_published_after_client_disconnects(
    services: Services, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a complete upload the model is published, even if the client has disconnected."""
    started, may_continue = threading.Event(), threading.Event()
    request: Any = FakeRequest(make_tar(source))

    def open_slowly(*arguments: Any, **options: Any) -> tarfile.TarFile:
        started.set()
        assert may_continue.wait(60)
        return tarfile.TarFile.open(*arguments, **options)

    monkeypatch.setattr(tarfile, "open", open_slowly)
    task = asyncio.ensure_future(put_model(services, "a", request))
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_continue.set()
    with anyio.fail_after(60):
        while services.models.find("a") is None or list(services.layout.models.glob(".upload-*")):
            await anyio.sleep(0.01)
    services.models.get("a").verify()


class FakeRequest:
    """A request with only the methods that the route uses."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def stream(self) -> AsyncIterator[bytes]:
        yield self._content


async def test_alias_is_promoted_and_rolled_back(
    client: httpx.AsyncClient, services: Services, tiny_model: Path
) -> None:
    services.models.add(tiny_model, "next")
    moved = (await client.put("/v1/aliases/latest", json={"model": "next"})).json()
    assert (moved["id"], moved["model"]) == ("latest", "next")
    listed = (await client.get("/v1/aliases")).json()["data"]
    assert [alias["model"] for alias in listed] == ["next"]
    assert (await client.get("/v1/models/latest")).json()["id"] == "next"

    back = (await client.post("/v1/aliases/latest/rollback")).json()
    assert back["model"] == "tiny"
    history = (await client.get("/v1/aliases/latest")).json()["history"]
    assert [(move["model"], move["rollback"]) for move in history] == [
        ("tiny", False),
        ("next", False),
        ("tiny", True),
    ]
    message = await read_message(await client.post("/v1/aliases/latest/rollback"), 404)
    assert message == "alias 'latest' has no earlier model to go back to"
    message = await read_message(await client.put("/v1/aliases/x", json={"model": "nope"}), 404)
    assert "no model has the id 'nope'" in message
    await read_message(await client.put("/v1/aliases/x", json={"modell": "tiny"}), 400)
    assert (await client.get("/v1/aliases/nope")).status_code == 404


async def test_model_in_use_is_not_deleted(
    client: httpx.AsyncClient, services: Services, tiny_model: Path
) -> None:
    services.models.add(tiny_model, "other")
    run = add_job(services.layout, "other")
    message = await read_message(await client.delete("/v1/models/other"), 409)
    assert message == "job 'ftjob-000001' still needs model 'other'"
    run.update_record(status="failed")
    assert "'latest' points to" in await read_message(await client.delete("/v1/models/tiny"), 409)
    lock = services.models.get("other").lock_shared()
    await read_message(await client.delete("/v1/models/other"), 409)
    lock.close()
    deleted = (await client.delete("/v1/models/other")).json()
    assert deleted == {"id": "other", "object": "model", "deleted": True}
    assert (await client.get("/v1/models/other")).status_code == 404
    removed = (await client.delete("/v1/aliases/latest")).json()
    assert removed == {"id": "latest", "object": "alias", "deleted": True}
    assert (await client.delete("/v1/models/tiny")).status_code == 200


def make_entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.mode = kind, len(content), 0o700
    return entry.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


async def test_archive_with_deep_folders_is_refused_and_removed(
    client: httpx.AsyncClient, services: Services
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for depth in range(1, 1700, 100):  # in steps, beyond Python's recursion limit
            entry = tarfile.TarInfo("/".join(["a"] * depth))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(entry)
    assert "folders deep" in await read_message(await put(client, "deep", buffer.getvalue()), 400)
    assert not list(services.layout.models.glob(".upload-*"))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
async def test_zip_archive_with_other_compression_than_deflate_is_refused(
    client: httpx.AsyncClient, method: int
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("config.json", b"{}")
    assert "by method" in await read_message(await put(client, "bomb", buffer.getvalue()), 400)


async def test_archive_with_large_entry_header_is_refused(client: httpx.AsyncClient) -> None:
    attributes = b"".join(b"15 a%08d=b\n" % number for number in range(100))
    for head in (
        make_entry("x", tarfile.XHDTYPE, attributes),
        make_entry("x", tarfile.GNUTYPE_LONGNAME, b"a" * 100_000 + b"\0"),
    ):
        content = head + make_entry("config.json", content=b"{}") + bytes(1024)
        assert "attributes" in await read_message(await put(client, "large", content), 400)


async def test_archive_with_chain_of_headers_is_refused(client: httpx.AsyncClient) -> None:
    name = make_entry("x", tarfile.GNUTYPE_LONGNAME, b"a" * 300_000 + b"\0")
    content = name * 8 + make_entry("config.json", content=b"{}") + bytes(1024)
    assert "a header is too long" in await read_message(await put(client, "large", content), 400)


@pytest.mark.parametrize("kind", ["tar", "zip"])
async def test_implicit_folders_of_archive_count_toward_entry_limit(
    client: httpx.AsyncClient, source: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.http_api.model_import._MAX_ENTRIES", 100)
    buffer = io.BytesIO()
    names = [f"{number}/a/b/c/d/e/x" for number in range(50)]
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in names:
                archive.writestr(name, b"")
    else:
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name))
    message = await read_message(await put(client, "a", buffer.getvalue()), 400)
    assert "more than 100 files and folders" in message
