"""`/openapi.json`: usable by a generated client, with a limit for each part of a request."""

import json
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import uvicorn

from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.ui.frame.api_reference import build_curl, list_calls
from tests.apps.conftest import ROW
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
GENERATOR = ROOT / ".venv" / "openapi-client" / "bin"
START_TIMEOUT_S = 10.0 * PATIENCE
OVERRIDES = {
    "application/x-tar": "application/octet-stream",
    "application/zip": "application/octet-stream",
}
REQUESTS = (
    *("ChatCompletionRequest", "CompletionRequest", "EvaluationRequest", "FineTuneRequest"),
    "Promotion",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def description(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/openapi.json")).json()
    return found


def list_operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


async def test_examples_of_page_are_valid(description: dict[str, Any]) -> None:
    """Each request has an example on the page "HTTP API" that its schema accepts."""
    schemas = description["components"]["schemas"]
    calls = [call for calls in list_calls(description).values() for call in calls]
    assert len(calls) == sum(len(each) for each in description["paths"].values())
    assert set(list_calls(description)) >= {"Models", "Files", "Fine-tuning", "Chat", "Health"}
    for call in calls:
        words = shlex.split(build_curl(call, schemas))
        if "-d" not in words:
            continue
        content = call.operation["requestBody"]["content"]["application/json"]
        schema = {**content["schema"], "components": description["components"]}
        jsonschema.validate(json.loads(words[words.index("-d") + 1]), schema)


async def test_each_response_is_described(description: dict[str, Any]) -> None:
    for method, path, operation in list_operations(description):
        responses = operation["responses"]
        assert "422" not in responses
        for code in ("4XX", "5XX"):
            schema = responses[code]["content"]["application/json"]["schema"]
            assert schema["$ref"].endswith("/Error")
        is_started = path.endswith(("/publish", "/merge", "/install", "/push"))
        content = responses["202" if is_started else "200"]["content"]
        schemas = [each["schema"] for each in content.values()]
        assert all("$ref" in schema or schema["type"] == "string" for schema in schemas), path
        if method in ("put", "post") and path.rpartition("/")[2] not in (
            *("cancel", "pause", "resume", "rollback", "verify"),
        ):
            assert operation["requestBody"]["content"], path
    text = json.dumps(description)
    assert "HTTPValidationError" not in text
    assert description["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for kind in ("chat/completions", "completions"):
        content = description["paths"][f"/v1/{kind}"]["post"]["responses"]["200"]["content"]
        assert content.keys() == {"application/json", "text/event-stream"}


async def test_each_reference_resolves(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    text = json.dumps(description)
    for part in text.split('"$ref": "')[1:]:
        name = part.partition('"')[0].removeprefix("#/components/schemas/")
        assert name in schemas, name


def find_unbounded(schema: Any, schemas: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the parts of a request that have no maximum length."""
    if "$ref" in schema:
        yield from find_unbounded(schemas[schema["$ref"].rpartition("/")[2]], schemas, path)
    for number, option in enumerate(schema.get("anyOf", ())):
        yield from find_unbounded(option, schemas, f"{path}|{number}")
    kind = schema.get("type")
    if kind == "string" and not {"maxLength", "enum", "const"} & schema.keys():
        yield path
    if kind == "integer" and not {"maximum", "exclusiveMaximum", "const"} & schema.keys():
        yield path
    if kind == "array":
        if "maxItems" not in schema:
            yield path
        yield from find_unbounded(schema.get("items", {}), schemas, f"{path}[]")
    if kind == "object":
        if schema.get("additionalProperties") is not False and "maxProperties" not in schema:
            yield path
        for name, inner in schema.get("properties", {}).items():
            yield from find_unbounded(inner, schemas, f"{path}.{name}")


@pytest.mark.parametrize("name", REQUESTS)
async def test_each_part_of_request_has_limit(description: dict[str, Any], name: str) -> None:
    schemas = description["components"]["schemas"]
    allowed = {"ChatCompletionRequest.messages[].content|1[]"}  # extra keys are ignored
    assert set(find_unbounded(schemas[name], schemas, name)) - allowed == set()


@pytest.mark.parametrize(
    ("name", "body", "is_valid"),
    [
        ("CompletionRequest", {"model": "m", "prompt": "x", "stop": "a"}, True),
        ("CompletionRequest", {"model": "m", "prompt": ["x", "y"], "stop": ["a"]}, True),
        ("CompletionRequest", {"model": "m", "prompt": [1, 2], "suffix": ""}, True),
        ("CompletionRequest", {"model": "m", "prompt": [[1], [2]], "n": None}, True),
        ("CompletionRequest", {"model": "m", "prompt": []}, False),
        ("CompletionRequest", {"model": "m", "prompt": [[]]}, False),
        ("CompletionRequest", {"model": "m", "prompt": "x", "stop": ["a"] * 5}, False),
        ("CompletionRequest", {"model": "m", "prompt": "x", "unknown": 1}, False),
    ],
)
async def test_described_body_validity_matches_server_validation(
    client: httpx.AsyncClient,
    description: dict[str, Any],
    name: str,
    body: dict[str, Any],
    is_valid: bool,
) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": description["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == is_valid
    answer = await client.post("/v1/completions", json={**body, "model": "nobody"})
    assert answer.status_code == (404 if is_valid else 400), answer.text


async def test_responses_match_description(
    client: httpx.AsyncClient, description: dict[str, Any]
) -> None:
    upload = {"file": ("rows.jsonl", json.dumps(ROW).encode())}
    file = await client.post("/v1/files", files=upload, data={"purpose": "fine-tune"})
    ask = {"model": "tiny", "training_file": file.json()["id"]}
    job = await client.post("/v1/fine_tuning/jobs", json=ask)
    jobs, job_id, file_id = "/v1/fine_tuning/jobs", job.json()["id"], file.json()["id"]
    await client.put("/v1/aliases/a", json={"model": "tiny"})
    for path, values in (
        ("/livez", {}),
        ("/readyz", {}),
        ("/v1/access", {}),
        ("/v1/files", {}),
        ("/v1/files/{file_id}", {"file_id": file_id}),
        ("/v1/files/{file_id}/preview", {"file_id": file_id}),
        ("/v1/files/{file_id}/rows", {"file_id": file_id}),
        ("/v1/files/{file_id}/statistics", {"file_id": file_id}),
        ("/v1/files/{file_id}/faults", {"file_id": file_id}),
        ("/v1/files/{file_id}/duplicates", {"file_id": file_id}),
        ("/v1/fine_tuning/defaults", {}),
        (jobs, {}),
        (f"{jobs}/{{job_id}}", {"job_id": job_id}),
        (f"{jobs}/{{job_id}}/events", {"job_id": job_id}),
        (f"{jobs}/{{job_id}}/checkpoints", {"job_id": job_id}),
        (f"{jobs}/{{job_id}}/metrics", {"job_id": job_id}),
        (f"{jobs}/{{job_id}}/evaluations", {"job_id": job_id}),
        ("/v1/models", {}),
        ("/v1/models/{model_id}", {"model_id": "tiny"}),
        ("/v1/models/{model_id}/lineage", {"model_id": "tiny"}),
        ("/v1/models/{model_id}/merges", {"model_id": "tiny"}),
        ("/v1/hub", {}),
        ("/v1/hub/transfers", {}),
        ("/v1/aliases", {}),
        ("/v1/aliases/{name}", {"name": "a"}),
        ("/v1/aliases/{name}/events", {"name": "a"}),
    ):
        answer = await client.get(path.format(**values))
        assert answer.status_code == 200
        content = description["paths"][path]["get"]["responses"]["200"]["content"]
        schema = {**content["application/json"]["schema"], "components": description["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
    estimate = await client.post(f"{jobs}/estimate", json=ask)
    validate(estimate, description, f"{jobs}/estimate", "post")


def validate(
    answer: httpx.Response, description: dict[str, Any], path: str, method: str = "get"
) -> None:
    """Validate a response against the description of its status."""
    responses = description["paths"][path][method]["responses"]
    content = responses[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    schema = {**content[kind]["schema"], "components": description["components"]}
    if kind == "application/json":
        jsonschema.Draft202012Validator(schema).validate(answer.json())


async def test_responses_about_damaged_resources_match_description(
    client: httpx.AsyncClient, description: dict[str, Any], services: Services
) -> None:
    run = services.layout.run("ftjob-186d0f3c5e0a1b2c00000001")
    run.mkdir()
    (run / "run.json").write_text("{")
    jobs = await client.get("/v1/fine_tuning/jobs")
    assert [job["status"] for job in jobs.json()["data"]] == ["unreadable"]
    validate(jobs, description, "/v1/fine_tuning/jobs")
    shutil.rmtree(services.layout.root)
    unready = await client.get("/readyz")
    assert unready.status_code == 503
    validate(unready, description, "/readyz")


@pytest.mark.parametrize("name", ["rows.csv", "rows.json", "rows.html"])
async def test_file_content_has_same_content_type_for_any_filename(
    client: httpx.AsyncClient, description: dict[str, Any], name: str
) -> None:
    upload = {"file": (name, json.dumps(ROW).encode())}
    file = await client.post("/v1/files", files=upload, data={"purpose": "fine-tune"})
    content = await client.get(f"/v1/files/{file.json()['id']}/content")
    assert content.headers["content-type"] == "application/octet-stream"
    validate(content, description, "/v1/files/{file_id}/content")


@contextmanager
def serve(services: Services) -> Iterator[str]:
    """Serve the API on a real socket and yield its address."""
    config = uvicorn.Config(build_http(services, None), port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT_S)


def test_generated_client_works(services: Services, tmp_path: Path) -> None:
    assert GENERATOR.is_dir(), "make test installs the generator; see tests/openapi-client.txt"
    config = {"post_hooks": [], "content_type_overrides": OVERRIDES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with serve(services) as url:
        description = httpx.get(f"{url}/openapi.json").text
        (tmp_path / "openapi.json").write_text(description)
        arguments = ["--path", "openapi.json", "--config", "config.json", "--meta", "none"]
        arguments += ["--output-path", "client"]
        made = subprocess.run(
            [GENERATOR / "openapi-python-client", "generate", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        assert "WARNING" not in made.stdout + made.stderr, made.stdout + made.stderr
        script = Path(__file__).with_name("use_generated_client.py")
        used = subprocess.run(
            [GENERATOR / "python", script, tmp_path, url],
            capture_output=True,
            text=True,
            timeout=60,
            env={},
        )
        assert used.returncode == 0, used.stdout + used.stderr
