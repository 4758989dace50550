"""The content of the audit log, what it never contains, and its bounded size."""

import logging
import stat
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import pytest
from starlette.types import Message

from apps.access.audit import FAILURES_PER_MINUTE, AuditEntry, AuditLog
from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.middleware.auth import WRONG_KEYS_PER_MINUTE
from storage.durable import read_json_lines
from storage.layout import StorageLayout
from storage.locks import lock_exclusive
from tests.apps.access.conftest import Connect

pytestmark = pytest.mark.anyio


def entry(**changes: Any) -> AuditEntry:
    fields = {"key": "ann", "key_id": "1", "role": "admin", "client": "10.0.0.9", "method": "PUT"}
    more = {"path": "/v1/aliases/a", "subject": "a", "status": 200, "outcome": "done"}
    return AuditEntry(**{"request_id": "r", "reason": None, **fields, **more, **changes})


async def test_each_change_writes_audit_line_with_key_subject_and_outcome(
    keys: KeyStore, connect: Connect, layout: StorageLayout, file_id: str
) -> None:
    created = keys.create("ann", Role.ADMIN)
    async with connect(created.text) as client:
        await client.put("/v1/aliases/best?token=hush", json={"model": "tiny"})
        job = (
            await client.post(
                "/v1/fine_tuning/jobs", json={"model": "tiny", "training_file": file_id}
            )
        ).json()
        form = {"purpose": "fine-tune"}
        file = {"file": ("hush.jsonl", b'{"text": "hush"}\n')}
        upload = (await client.post("/v1/files", data=form, files=file)).json()
        assert (await client.delete("/v1/models/nobody")).status_code == 404
        await client.get("/v1/models")
        estimated = await client.post(
            "/v1/fine_tuning/jobs/estimate", json={"model": "tiny", "training_file": file_id}
        )
        assert estimated.status_code == 200
        await client.post(
            "/v1/chat/completions",
            json={"model": "latest", "messages": [{"role": "user", "content": "hush"}]},
        )
    lines = read_json_lines(layout.access.audit)
    assert [
        (line["method"], line["path"], line["subject"], line["outcome"], line["status"])
        for line in lines
    ] == [
        ("PUT", "/v1/aliases/best", "best", "done", 200),
        ("POST", "/v1/fine_tuning/jobs", job["id"], "done", 200),
        ("POST", "/v1/files", upload["id"], "done", 200),
        ("DELETE", "/v1/models/nobody", "nobody", "failed", 404),
    ]
    assert {(line["key"], line["key_id"], line["role"]) for line in lines} == {
        ("ann", created.record.id, "admin")
    }
    assert all(line["time"].endswith("+00:00") for line in lines)
    assert "hush" not in layout.access.audit.read_text()
    assert created.text.split("-", 2)[2] not in layout.access.audit.read_text()
    assert stat.S_IMODE(layout.access.audit.stat().st_mode) == 0o600


async def test_long_id_is_shortened_in_audit_line(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    async with connect(keys.create("ann", Role.TRAIN).text) as client:
        assert (await client.delete(f"/v1/files/{'a' * 60_000}")).status_code == 404
    assert len(layout.access.audit.read_text()) < 1000


async def test_each_refused_request_writes_audit_line(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    async with connect(keys.create("bob", Role.READ, requests_per_minute=1).text) as client:
        await client.delete("/v1/models/tiny")
        await client.get("/v1/models")
        await client.get("/v1/models")
        await client.get("/v1/models", headers={"authorization": "Bearer hush"})
        await client.get("/v1/models", headers={"authorization": ""})
    lines = read_json_lines(layout.access.audit)
    assert [(line.get("key"), line["status"], line["reason"]) for line in lines] == [
        ("bob", 403, "insufficient_permission"),
        ("bob", 429, "rate_limit_exceeded"),
        (None, 401, "invalid_api_key"),
        (None, 401, "no_api_key"),
    ]
    assert {line["outcome"] for line in lines} == {"refused"}
    assert "hush" not in layout.access.audit.read_text()


async def test_audit_line_names_expired_or_revoked_key(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    expired = keys.create("old", Role.READ, expires_at=1.0)
    revoked = keys.create("gone", Role.ADMIN)
    keys.revoke("gone")
    async with connect() as client:
        for key in (expired, revoked):
            headers = {"authorization": f"Bearer {key.text}"}
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
    lines = read_json_lines(layout.access.audit)
    assert [(line["key"], line["key_id"], line["role"], line["reason"]) for line in lines] == [
        ("old", expired.record.id, "read", "expired_api_key"),
        ("gone", revoked.record.id, "admin", "revoked_api_key"),
    ]


async def test_audit_line_has_id_of_created_resource_and_subject(
    keys: KeyStore, connect: Connect, layout: StorageLayout, file_id: str
) -> None:
    async with connect(keys.create("ann", Role.ADMIN).text) as client:
        jobs = "/v1/fine_tuning/jobs"
        body = {"model": "tiny", "training_file": file_id}
        job = (await client.post(jobs, json=body)).json()["id"]
        clone = (await client.post(f"{jobs}/{job}/clone", json={})).json()["id"]
        await client.post(f"{jobs}/{job}/cancel")
        await client.post("/v1/models/latest/verify")
    lines = read_json_lines(layout.access.audit)
    assert [(line["subject"], line.get("created")) for line in lines] == [
        (job, job),
        (job, clone),
        (job, None),
        ("latest", None),
    ]


async def test_many_refusals_of_one_key_do_not_hide_refusals_of_another_key(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    ann, bob = keys.create("ann", Role.READ).text, keys.create("bob", Role.READ).text
    async with connect() as client:
        for key in ("wrong", ann, bob):
            headers = {"authorization": f"Bearer {key}"}
            for _ in range(FAILURES_PER_MINUTE + 5):
                await client.delete("/v1/models/tiny", headers=headers)
    counts = Counter(line.get("key") for line in read_json_lines(layout.access.audit))
    assert all(counts[name] >= FAILURES_PER_MINUTE for name in (None, "ann", "bob")), counts


async def test_failed_changes_are_sampled_like_refusals(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    num_requests = FAILURES_PER_MINUTE + 50
    async with connect(keys.create("ann", Role.ADMIN).text) as client:
        for number in range(num_requests):
            assert (await client.delete(f"/v1/files/file-{number}")).status_code == 404
        await client.put("/v1/aliases/a", json={"model": "tiny"})
    lines = read_json_lines(layout.access.audit)
    assert len(lines) < FAILURES_PER_MINUTE + 30
    failed = sum(line["outcome"] == "failed" for line in lines)
    assert failed + sum(line.get("num_suppressed", 0) for line in lines) == num_requests
    assert lines[-1]["outcome"] == "done"


def test_memory_for_failure_counts_of_keys_is_bounded(layout: StorageLayout) -> None:
    audit = AuditLog(layout)
    tracemalloc.start()
    for number in range(20_000):
        audit.samples_failure(f"key-{number}")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_000_000


async def test_audit_line_size_is_bounded_for_any_path(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    async with connect(keys.create("ann", Role.ADMIN).text) as client:
        for character in ("a", "\N{PILE OF POO}", "\x01", '"'):
            await client.delete(f"/v1/files/{quote(character * 5000)}")
    lines = layout.access.audit.read_bytes().splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) < 1000


async def test_refused_websocket_writes_audit_line(
    layout: StorageLayout, services: Services
) -> None:
    app = build_http(services, "s3cret")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/models", "headers": [], "client": ("10.0.0.9", 5)}
    await app(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    (line,) = read_json_lines(layout.access.audit)
    assert (line["method"], line["path"], line["outcome"]) == ("WEBSOCKET", "/v1/models", "refused")
    assert (line["reason"], line["client"], line["status"]) == ("websocket", "10.0.0.9", 403)


async def test_wrong_keys_are_rate_limited_and_suppressed_lines_are_counted(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    key = keys.create("ann", Role.ADMIN).text
    num_requests = WRONG_KEYS_PER_MINUTE + 50
    async with connect("wrong") as client:
        answers = [await client.get("/v1/models") for _ in range(num_requests)]
        right = {"authorization": f"Bearer {key}"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200, (
            "a valid key is rate limited with wrong keys"
        )
        await client.put("/v1/aliases/a", json={"model": "tiny"}, headers=right)
    # Five requests a second are allowed again, so the last one may be answered 401.
    limited = [answer for answer in answers if answer.status_code == 429]
    assert limited
    assert all(answer.status_code == 401 for answer in answers[:WRONG_KEYS_PER_MINUTE])
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in limited)
    lines = read_json_lines(layout.access.audit)
    assert len(lines) < FAILURES_PER_MINUTE + 30
    refused = sum(line["outcome"] == "refused" for line in lines)
    suppressed = sum(line.get("num_suppressed", 0) for line in lines)
    assert refused + suppressed == num_requests
    assert lines[-1]["outcome"] == "done", "a successful change is not in the audit log"


def test_audit_log_is_rotated_and_oldest_files_are_removed(layout: StorageLayout) -> None:
    audit = AuditLog(layout, max_bytes=10_000, num_old=2)
    for number in range(300):
        audit.write(entry(subject=f"alias-{number}"))
    files = sorted(path.name for path in layout.root.glob("audit*"))
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert sum(path.stat().st_size for path in layout.root.glob("audit*")) < 3 * 11_000
    rest = [
        line["subject"] for name in reversed(files) for line in read_json_lines(layout.root / name)
    ]
    assert rest == [f"alias-{number}" for number in range(300 - len(rest), 300)]


async def test_failed_write_of_audit_line_is_logged_as_error(
    keys: KeyStore, connect: Connect, layout: StorageLayout, caplog: pytest.LogCaptureFixture
) -> None:
    layout.access.audit.mkdir()
    async with connect(keys.create("ann", Role.ADMIN).text) as client:
        answer = await client.put("/v1/aliases/best", json={"model": "tiny"})
    assert answer.status_code == 200
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "/v1/aliases/best" in errors[0].getMessage()


async def test_access_log_line_has_path_status_and_key_but_no_query(
    keys: KeyStore, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="apps")
    async with connect(keys.create("ann", Role.READ).text) as client:
        answer = await client.get("/v1/models?token=hush", headers={"x-request-id": "r-1"})
        assert "x-request-id" not in answer.headers, (
            "the header is added twice: Serve's proxy adds it too"
        )
        own = await client.get("/v1/no%0aline")
        assert own.headers["x-request-id"].startswith("req-")
        await client.get("/healthz")
    lines = [r.getMessage() for r in caplog.records if r.name == "apps.middleware.audit"]
    assert len(lines) == 2
    assert lines[0].startswith("GET /v1/models 200 ")
    assert lines[0].endswith("key=ann id=r-1")
    assert "hush" not in lines[0]
    assert "\n" not in lines[1]


def test_refused_request_does_not_wait_for_write_of_audit_line(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_rotating = Event()

    def lock_and_report(path: Path) -> AbstractContextManager[object]:
        is_rotating.set()
        return lock_exclusive(path)

    monkeypatch.setattr("apps.access.audit.lock_exclusive", lock_and_report)
    audit = AuditLog(layout, max_bytes=1)
    with ThreadPoolExecutor() as threads, lock_exclusive(layout.access.audit_lock):
        writing = threads.submit(audit.write, entry())  # waits for the lock to rotate the log
        assert is_rotating.wait(10)
        counted = threads.submit(audit.samples_failure, None)
        wait([counted], timeout=10)
        is_counted, is_written = counted.done(), writing.done()
    assert (is_counted, is_written) == (True, False)
