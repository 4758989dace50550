import json
from typing import Any, cast

import httpx
import pytest
from openai.types import FileObject, Model
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError

from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.middleware.body_limit import MAX_JSON_BYTES, MAX_TEXT_BYTES
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
)
from tests.apps.conftest import Echo

pytestmark = pytest.mark.anyio
ROW = {"prompt": "How many loaves?", "completion": "Twelve."}
CHAT = {"model": "latest", "messages": [{"role": "user", "content": "one two"}]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def upload(
    client: httpx.AsyncClient, content: bytes, name: str = "rows.jsonl"
) -> httpx.Response:
    return await client.post(
        "/v1/files", files={"file": (name, content)}, data={"purpose": "fine-tune"}
    )


async def test_uploaded_and_downloaded_file_match(client: httpx.AsyncClient) -> None:
    content = f"{json.dumps(ROW)}\n".encode()
    file = FileObject.model_validate((await upload(client, content, "my rows.jsonl")).json())
    assert (file.bytes, file.filename) == (len(content), "my rows.jsonl")
    assert (await client.get(f"/v1/files/{file.id}/content")).content == content
    assert [f["id"] for f in (await client.get("/v1/files")).json()["data"]] == [file.id]
    assert (await client.delete(f"/v1/files/{file.id}")).json()["deleted"] is True
    assert (await client.get(f"/v1/files/{file.id}")).status_code == 404


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 400, "the file is empty"),
        (b"\x89PNG\r\n\xff\xfe", 400, "'rows.jsonl' is not text"),
        (b"x" * 10_001, 413, "larger than 10,000 bytes"),
    ],
)
async def test_invalid_upload_is_refused_and_leaves_no_files(
    client: httpx.AsyncClient, services: Services, content: bytes, status: int, message: str
) -> None:
    answer = await upload(client, content)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert list(services.layout.files.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../../evil", "..", "a/b.jsonl", "file.json", "/etc/passwd", "ü\x00"]
)
async def test_client_filename_cannot_escape_file_folder(
    client: httpx.AsyncClient, services: Services, name: str
) -> None:
    answer = await upload(client, b'{"text": "x"}\n', name)
    assert answer.status_code == 200
    path = services.files.find_content(answer.json()["id"])
    assert path.parent.parent == services.layout.files
    assert path.name != "file.json"


async def test_job_has_openai_format(client: httpx.AsyncClient) -> None:
    file = (await upload(client, f"{json.dumps(ROW)}\n".encode())).json()
    answer = await client.post(
        "/v1/fine_tuning/jobs", json={"model": "latest", "training_file": file["id"]}
    )
    assert answer.status_code == 200
    job = FineTuningJob.model_validate(answer.json(), strict=False)
    assert job.status == "queued"
    listed = (await client.get("/v1/fine_tuning/jobs")).json()
    assert [entry["id"] for entry in listed["data"]] == [job.id]
    events = (await client.get(f"/v1/fine_tuning/jobs/{job.id}/events")).json()["data"]
    queued, read = [FineTuningJobEvent.model_validate(event) for event in events]
    assert events[0]["code"] == "queued"
    assert queued.message == "Queued"
    assert read.message.startswith("1 rows (prompt_completion)")
    assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 409
    cancelled = await client.post(f"/v1/fine_tuning/jobs/{job.id}/cancel")
    assert cancelled.json()["status"] == "cancelled"


async def test_pages_of_job_list_cover_all_jobs(client: httpx.AsyncClient) -> None:
    file = (await upload(client, f"{json.dumps(ROW)}\n".encode())).json()
    body = {"model": "tiny", "training_file": file["id"]}
    made = [(await client.post("/v1/fine_tuning/jobs", json=body)).json()["id"] for _ in range(5)]
    seen: list[str] = []
    while True:
        page = (
            await client.get(
                "/v1/fine_tuning/jobs", params={"limit": 2, **({"after": seen[-1]} if seen else {})}
            )
        ).json()
        seen += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            break
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"model": "nobody"}, 404, "model", "'nobody'"),
        ({"training": {"learning_rate": 0}}, 400, "learning_rate", "learning_rate is 0"),
        ({"training": {"learning_rat": 0}}, 400, "learning_rat", "is not a setting"),
        ({"training_file": "file-x"}, 404, "id", "there is no file 'file-x'"),
        ({"suffix": "a b"}, 400, "suffix", "suffix"),
        ({"training": {"num_workers": 99}}, 400, None, "99 workers"),
    ],
)
async def test_job_errors_have_openai_format(
    client: httpx.AsyncClient, body: Any, status: int, param: str | None, message: str
) -> None:
    file = (await upload(client, f"{json.dumps(ROW)}\n".encode())).json()
    answer = await client.post(
        "/v1/fine_tuning/jobs", json={"model": "tiny", "training_file": file["id"], **body}
    )
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert error["param"] == param
    assert message in error["message"]


async def test_model_response_has_aliases_and_base(client: httpx.AsyncClient) -> None:
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert Model.model_validate(model).id == "tiny"
    assert model["aliases"] == ["latest"]
    assert model["base"] is True
    assert (await client.get("/v1/models/latest")).json()["id"] == "tiny"


async def test_chat_response_names_its_model(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.headers["x-model-id"] == "tiny"
    assert answer.json()["model"] == "tiny"
    assert answer.json()["choices"][0]["message"]["content"] == "one two "


async def test_chat_stream_ends_with_done(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "one two "


def _wrap_as_ray_error(failure: Exception) -> Exception:
    """Return an exception as Ray passes it on from another process."""
    wrap: Any = RayTaskError
    wrapped: Exception = wrap("answer", "a secret traceback", failure).as_instanceof_cause()
    return wrapped


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (InvalidRequestError("too long", param="messages"), 400),
        (OverloadedError("full", retry_after_s=7), 429),
        (DeadlineExceededError("late"), 504),
        (EngineDeadError("dead"), 503),
        (_wrap_as_ray_error(EngineDeadError("dead")), 503),
        (_wrap_as_ray_error(RuntimeError("secret inside")), 500),
        (RayActorError(), 503),
        (BackPressureError(num_queued_requests=9, max_queued_requests=9), 429),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_generator_errors_are_mapped_to_http_status(
    client: httpx.AsyncClient, services: Services, failure: Exception, status: int, stream: bool
) -> None:
    cast(Echo, services.text).failure = failure
    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    assert answer.status_code == status
    assert "secret" not in answer.text
    if status == 429:
        assert answer.headers["retry-after"] == ("7" if "full" in str(failure) else "1")


async def test_unexpected_error_gets_500_without_details(services: Services) -> None:
    cast(Echo, services.text).failure = RuntimeError("secret inside")
    transport = httpx.ASGITransport(build_http(services, None), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 500
    assert "secret" not in answer.text


@pytest.mark.parametrize("body", ["", "{", "[]", '"x"'])
async def test_body_that_is_no_json_object_is_refused(client: httpx.AsyncClient, body: str) -> None:
    for path in ("/v1/chat/completions", "/v1/fine_tuning/jobs"):
        answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


async def test_invalid_query_error_has_no_internal_details(client: httpx.AsyncClient) -> None:
    for path in ("/v1/fine_tuning/jobs?limit=0", "/v1/files/x/preview?rows=99"):
        answer = await client.get(path)
        assert answer.status_code == 400
        assert ".py" not in answer.text
        assert "it should be" in answer.json()["error"]["message"]


async def test_oversized_body_error_has_openai_format(client: httpx.AsyncClient) -> None:
    answer = await upload(client, b"x" * 500_000)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_unknown_path_error_has_openai_format(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_completion_returns_choices_and_usage(client: httpx.AsyncClient) -> None:
    body = {"model": "latest", "prompt": "one two", "n": 2}
    answer = await client.post("/v1/completions", json=body)
    assert answer.headers["x-model-id"] == "tiny"
    assert answer.json()["object"] == "text_completion"
    assert [choice["text"] for choice in answer.json()["choices"]] == ["one two "] * 2
    assert answer.json()["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
    }


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_stream_with_include_usage_ends_with_usage(
    client: httpx.AsyncClient, path: str
) -> None:
    options = {"stream": True, "n": 2, "stream_options": {"include_usage": True}}
    ask = CHAT if path.startswith("chat") else {"model": "latest", "prompt": "one two"}
    answer = await client.post(f"/v1/{path}", json={**ask, **options})
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ends = [choice["index"] for choice in choices if choice["finish_reason"] == "stop"]
    assert ends == [0, 1]


async def test_oversized_json_body_gets_413(client: httpx.AsyncClient) -> None:
    limits = {
        "chat/completions": MAX_TEXT_BYTES,
        "completions": MAX_TEXT_BYTES,
        "fine_tuning/jobs": MAX_JSON_BYTES,
        "aliases/a/rollback": MAX_JSON_BYTES,
    }
    for path, limit in limits.items():
        answer = await client.post(f"/v1/{path}", content=b"x" * (limit + 1))
        assert answer.status_code == 413
        assert f"expected at most {limit:,}" in answer.json()["error"]["message"]
