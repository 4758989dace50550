"""What is in the audit log, what never is, and that nobody can fill the disk with it."""

import logging
import stat
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from apps.access.audit import REFUSALS_PER_MINUTE, AuditEntry, AuditLog
from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.middleware.auth import WRONG_KEYS_PER_MINUTE
from storage.durable import read_json_lines
from storage.layout import StorageLayout
from storage.locks import take_turn
from tests.apps.access.conftest import Connect

pytestmark = pytest.mark.anyio


def entry(**changes: Any) -> AuditEntry:
    fields = {"key": "ann", "key_id": "1", "role": "admin", "client": "10.0.0.9", "method": "PUT"}
    more = {"path": "/v1/aliases/a", "subject": "a", "status": 200, "outcome": "done"}
    return AuditEntry(**{"request_id": "r", "reason": None, **fields, **more, **changes})


async def test_every_change_has_a_line_with_key_subject_and_outcome(
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
        await client.post(
            "/v1/chat/completions",
            json={"model": "latest", "messages": [{"role": "user", "content": "hush"}]},
        )
    lines = read_json_lines(layout.audit)
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
    assert "hush" not in layout.audit.read_text()
    assert created.text.split("-", 2)[2] not in layout.audit.read_text()
    assert stat.S_IMODE(layout.audit.stat().st_mode) == 0o600


async def test_a_long_id_is_shortened(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    async with connect(keys.create("ann", Role.TRAIN).text) as client:
        assert (await client.delete(f"/v1/files/{'a' * 60_000}")).status_code == 404
    assert len(layout.audit.read_text()) < 1000


async def test_every_refused_request_has_a_line(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    async with connect(keys.create("bob", Role.READ, requests_per_minute=1).text) as client:
        await client.delete("/v1/models/tiny")
        await client.get("/v1/models")
        await client.get("/v1/models")
        await client.get("/v1/models", headers={"authorization": "Bearer hush"})
        await client.get("/v1/models", headers={"authorization": ""})
    lines = read_json_lines(layout.audit)
    assert [(line.get("key"), line["status"], line["reason"]) for line in lines] == [
        ("bob", 403, "insufficient_permission"),
        ("bob", 429, "rate_limit_exceeded"),
        (None, 401, "invalid_api_key"),
        (None, 401, "no_api_key"),
    ]
    assert {line["outcome"] for line in lines} == {"refused"}
    assert "hush" not in layout.audit.read_text()


async def test_a_flood_of_wrong_keys_is_limited_and_its_lines_are_counted(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    key = keys.create("ann", Role.ADMIN).text
    num_requests = WRONG_KEYS_PER_MINUTE + 50
    async with connect("wrong") as client:
        answers = [await client.get("/v1/models") for _ in range(num_requests)]
        right = {"authorization": f"Bearer {key}"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200, "not held up"
        await client.put("/v1/aliases/a", json={"model": "tiny"}, headers=right)
    statuses = [answer.status_code for answer in answers]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    lines = read_json_lines(layout.audit)
    assert len(lines) < REFUSALS_PER_MINUTE + 30
    refused = sum(line["outcome"] == "refused" for line in lines)
    suppressed = sum(line.get("num_suppressed", 0) for line in lines)
    assert refused + suppressed == num_requests
    assert lines[-1]["outcome"] == "done", "a change is never left out"


def test_the_log_is_rotated_and_older_files_go(layout: StorageLayout) -> None:
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


async def test_a_line_that_cannot_be_written_is_an_error_in_the_log(
    keys: KeyStore, connect: Connect, layout: StorageLayout, caplog: pytest.LogCaptureFixture
) -> None:
    layout.audit.mkdir()
    async with connect(keys.create("ann", Role.ADMIN).text) as client:
        answer = await client.put("/v1/aliases/best", json={"model": "tiny"})
    assert answer.status_code == 200
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "/v1/aliases/best" in errors[0].getMessage()


async def test_the_access_line_names_path_status_and_key_but_no_query(
    keys: KeyStore, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="apps")
    async with connect(keys.create("ann", Role.READ).text) as client:
        answer = await client.get("/v1/models?token=hush", headers={"x-request-id": "r-1"})
        assert "x-request-id" not in answer.headers, "Serve's proxy adds it"
        own = await client.get("/v1/no%0aline")
        assert own.headers["x-request-id"].startswith("req-")
        await client.get("/healthz")
    lines = [r.getMessage() for r in caplog.records if r.name == "apps.middleware.audit"]
    assert len(lines) == 2
    assert lines[0].startswith("GET /v1/models 200 ")
    assert lines[0].endswith("key=ann id=r-1")
    assert "hush" not in lines[0]
    assert "\n" not in lines[1]


def test_a_refused_request_does_not_wait_for_a_line_that_is_being_written(
    layout: StorageLayout,
) -> None:
    audit = AuditLog(layout, max_bytes=1)
    with ThreadPoolExecutor() as threads, take_turn(layout.audit_lock):
        writing = threads.submit(audit.write, entry())  # waits for its turn to rotate
        while not layout.audit.exists():
            time.sleep(0.01)
        time.sleep(0.1)
        counted = threads.submit(audit.samples_refusal)
        wait([counted], timeout=10)
        is_counted, is_written = counted.done(), writing.done()
    assert (is_counted, is_written) == (True, False)
