"""Many requests generated from the API's own description; none may cause a server error.

`FUZZ_REQUESTS` sets the number (1,500 by default, 5,000 with `make chaos`).
"""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import BaseModel
from schemathesis.errors import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from apps.http_api.openapi.text_schemas import ChatCompletionChunk, Completion
from tests.e2e.conftest import Application

pytestmark = pytest.mark.e2e

MODEL = "tuneserve-demo"
MIN_REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "1500"))
MIN_FEW = MIN_REQUESTS // 500
MAX_PROCESS_BYTES = 1_000_000_000
MAX_REFUSAL_S = 5.0
MAX_TOKENS = 4
MAX_STREAM_EVENTS = 1_000_000
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
EVENTS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionChunk,
    "/v1/completions": Completion,
}
TEXT_PATHS = tuple(EVENTS)


def test_generated_requests_cause_no_server_error(application: Application) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{application.url}/openapi.json")
    schema.config.max_stream_events = MAX_STREAM_EVENTS  # the default cuts long streams short
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses: Counter[int] = Counter()
    answered: Counter[str] = Counter()
    faults: list[str] = []
    streamed: Counter[str] = Counter()

    def send(case: Any) -> None:
        _set_existing_model(case, is_streamed=sum(statuses.values()) % 2 == 0)
        response = case.call(timeout=60)
        kind = response.headers.get("content-type", [""])[0]
        is_streamed = kind.startswith("text/event-stream")
        statuses[response.status_code] += 1
        answered[f"{case.method} {case.path}"] += response.status_code == 200
        streamed[case.path] += is_streamed
        if response.status_code >= 500:
            faults.append(f"{case.method} {case.formatted_path}: {response.status_code}")
        elif is_streamed:
            _check_events(EVENTS[case.path], response.text)
        else:
            try:
                case.validate_response(response, checks=CHECKS)
            except FailureGroup as exc:
                faults.append(f"{case.method} {case.formatted_path}: {exc.exceptions}")

    # An operation without parameters gets one request; generation and uploads, whose requests are
    # seldom valid, get four times as many as the others.
    num_each = 12 * MIN_REQUESTS // (10 * (len(operations) + 12))
    for operation in operations:

        @settings(
            max_examples=num_each * (4 if operation.path in (*TEXT_PATHS, "/v1/files") else 1),
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def send_cases(case: Any) -> None:
            send(case)

        send_cases()
    print(dict(statuses), f"{len(operations)} operations")
    assert not faults, faults[:10]
    assert sum(statuses.values()) >= MIN_REQUESTS
    for path in TEXT_PATHS:
        assert answered[f"POST {path}"] > MIN_FEW, f"{answered}: some of them reached the model"
        assert streamed[path] > MIN_FEW, f"{streamed}: some of them were streamed"
    assert answered["POST /v1/files"] > 2, f"{answered}: some files were uploaded"
    assert application.client.models.retrieve(MODEL).id == MODEL


def test_expensive_bodies_are_rejected_in_bounded_time_and_memory(application: Application) -> None:
    keys = b",".join(b'"%06x":1' % number for number in range(700_000))
    bodies = {
        "/v1/chat/completions": b'{"messages":[' + b"{}," * 2_600_000 + b"{}]}",
        "/v1/completions": b'{"stop":[' + b"1," * 3_900_000 + b"1]}",
        "/v1/fine_tuning/jobs": b'{"model":"m",' + keys + b"}",
    }
    headers = {"content-type": "application/json"}
    for path, body in bodies.items():
        url = f"{application.url}{path}"
        answer = httpx.post(url, content=body, headers=headers, timeout=60)
        print(path, answer.status_code, f"{answer.elapsed.total_seconds():.2f} s")
        assert answer.status_code in (400, 413)
        assert len(answer.content) < 1_000
        assert answer.elapsed.total_seconds() < MAX_REFUSAL_S
    peaks = {name: size for name, size in _list_peaks(application) if size > MAX_PROCESS_BYTES}
    assert not peaks


def _list_peaks(application: Application) -> list[tuple[str, int]]:
    """Return the peak memory of each process of the application in bytes, largest first."""
    peaks = []
    for process in psutil.Process(application.process.pid).children(recursive=True):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            name = " ".join(process.cmdline())[:80]
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            continue
        if found := re.search(r"VmHWM:\s+(\d+) kB", status):
            peaks.append((name, int(found.group(1)) * 1024))
    peaks.sort(key=lambda peak: -peak[1])
    print(peaks[:6])
    return peaks


def _check_events(model: type[BaseModel], text: str) -> None:
    *events, last = [event for event in text.split("\n\n") if event]
    assert last == "data: [DONE]"
    for event in events:
        model.model_validate_json(event.removeprefix("data: "))


def _set_existing_model(case: Any, *, is_streamed: bool) -> None:
    """Set an existing model and a low token limit in generation requests."""
    if isinstance(case.body, dict) and case.path in TEXT_PATHS:
        case.body["model"] = MODEL
        if is_streamed:
            case.body["stream"] = True
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], MAX_TOKENS)
        if "max_completion_tokens" not in case.body:
            case.body.setdefault("max_tokens", MAX_TOKENS)
