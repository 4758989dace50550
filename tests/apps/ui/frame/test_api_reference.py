"""The page "HTTP API": all requests of a description, with commands that curl understands."""

import json
import shlex
from typing import Any

import pytest

from apps.ui.frame.api_reference import ApiCall, build_curl, build_example, list_calls
from apps.ui.frame.api_reference import render_reference as render
from tests.apps.ui.hostile import HOSTILE, assert_escaped

SCHEMAS: dict[str, Any] = {
    "Chat": {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": {"type": "string"},
            "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
            "stop": {"type": "string"},
        },
    },
    "Message": {
        "type": "object",
        "required": ["role"],
        "properties": {"role": {"enum": ["user", "system"]}, "loop": {"$ref": "#/…/Message"}},
    },
    "Loop": {
        "type": "object",
        "required": ["loop"],
        "properties": {"loop": {"$ref": "#/components/schemas/Loop"}},
    },
}


def describe_body(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"content": {kind: {"schema": schema}}}}


def build(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    command = build_curl(ApiCall(method, path, operation), SCHEMAS)
    return shlex.split(command.replace("\\\n", ""))


def test_curl_sends_what_is_required() -> None:
    body = describe_body("application/json", {"$ref": "#/components/schemas/Chat"})
    words = build("POST", "/v1/chat/completions", body)
    assert words[:2] == ["curl", "ORIGIN/v1/chat/completions"]
    assert "Authorization: Bearer $TUNESERVE_API_KEY" in words
    sent = json.loads(words[words.index("-d") + 1])
    assert sent == {"model": "MODEL", "messages": [{"role": "user"}]}


@pytest.mark.parametrize(
    ("method", "path", "operation", "words"),
    [
        ("GET", "/v1/files/{file_id}", {}, ["curl", "ORIGIN/v1/files/FILE_ID"]),
        ("DELETE", "/v1/files", {}, ["curl", "-X", "DELETE", "ORIGIN/v1/files"]),
        ("POST", "/v1/x/cancel", {}, ["curl", "-X", "POST", "ORIGIN/v1/x/cancel"]),
        (
            "GET",
            "/v1/defaults",
            {"parameters": [{"name": "model", "in": "query", "required": True}]},
            ["curl", "ORIGIN/v1/defaults?model=MODEL"],
        ),
    ],
)
def test_curl_names_method_and_address(
    method: str, path: str, operation: dict[str, Any], words: list[str]
) -> None:
    found = build(method, path, operation)
    assert found[: len(words)] == words


def test_curl_sends_forms_and_files() -> None:
    schema = {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"const": "fine-tune"},
        },
    }
    form = build("POST", "/v1/files", describe_body("multipart/form-data", schema))
    assert form[-4:] == ["-F", "file=@FILE", "-F", "purpose=fine-tune"]
    assert build("PUT", "/v1/m", describe_body("application/x-tar", {}))[-2:] == ["-T", "FILE"]


def test_example_of_recursive_schema_ends() -> None:
    example = build_example({"$ref": "#/components/schemas/Loop"}, SCHEMAS)
    assert json.dumps(example).count("loop") < 10


def test_requests_are_grouped_and_escaped() -> None:
    operation = {"tags": ["files"], "description": HOSTILE, "summary": "List"}
    paths = {"/v1/files": {"get": operation}, "/livez": {"get": {"summary": HOSTILE}}}
    groups = list_calls({"paths": paths})
    assert [(name, [call.path for call in calls]) for name, calls in groups.items()] == [
        ("Files", ["/v1/files"]),
        ("Health", ["/livez"]),
    ]
    html = render({"paths": paths})
    assert_escaped(html)
    assert 'href="./api#files"' in html
    assert 'id="files"' in html
