"""Keys, refused requests and logs of the real application; keys are created while it runs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from apps.server.server_process import build_command, build_environment
from benchmarks.application import find_free_port, write_deploy_file
from storage.durable import read_json_lines
from tests.e2e.conftest import ROOT, START_TIMEOUT_S, Application, start_application
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application without keys whose replicas log JSON."""
    folder = tmp_path_factory.mktemp("access")
    port = find_free_port()
    deploy = write_deploy_file(ROOT / "deploy.yaml", folder, port)
    settings = yaml.safe_load(deploy.read_text())
    settings["logging_config"] = {"encoding": "JSON"}
    deploy.write_text(yaml.safe_dump(settings, sort_keys=False))
    running = start_application(deploy, folder, port)
    yield running
    running.stop()


def run_keys(application: Application, *arguments: str) -> Any:
    command = [str(Path(sys.executable).parent / "tuneserve"), "keys", *arguments]
    storage = ["--storage", str(application.storage), "--json"]
    done = subprocess.run([*command, *storage], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def request_status(
    application: Application, method: str, path: str, key: str = "", **more: Any
) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    headers.update(more.pop("headers", {}))
    url = f"{application.url}{path}"
    return httpx.request(method, url, headers=headers, timeout=60, **more).status_code


def test_forwarded_request_without_key_is_rejected(served: Application) -> None:
    assert request_status(served, "GET", "/v1/models") == 200
    for name in ("Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "CF-Connecting-IP"):
        for path in ("/v1/models", "/ui/"):
            assert request_status(served, "GET", path, headers={name: "127.0.0.1"}) == 403, (
                name,
                path,
            )


def test_http_1_0_request_without_key_is_rejected(served: Application) -> None:
    """nginx's plain `proxy_pass` sends HTTP/1.0."""
    import socket

    port = httpx.URL(served.url).port
    assert port is not None
    for path in ("/v1/models", "/ui/"):
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            head = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 403 " in connection.makefile("rb").readline()


def test_new_keys_apply_at_once_until_revoked(
    served: Application,
) -> None:
    keys = {
        role: run_keys(served, "create", f"e2e-{role}", "--role", role)["key"]
        for role in ("read", "chat", "train", "admin")
    }
    assert request_status(served, "GET", "/v1/models") == 401
    assert request_status(served, "GET", "/ui/") == 401
    alias = {"json": {"model": "tuneserve-demo"}}
    found = {
        role: [
            request_status(served, "GET", "/v1/models", key),
            request_status(served, "GET", "/v1/fine_tuning/jobs", key),
            request_status(served, "GET", "/v1/files/file-handbook/content", key),
            request_status(served, "PUT", "/v1/aliases/best", key, **alias),
        ]
        for role, key in keys.items()
    }
    assert found == {
        "read": [200, 200, 403, 403],
        "chat": [200, 403, 403, 403],
        "train": [200, 200, 200, 403],
        "admin": [200, 200, 200, 200],
    }
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=keys["chat"], max_retries=0)
    question: Any = {"role": "user", "content": "When does the workshop open?"}
    assert client.chat.completions.create(model="latest", messages=[question]).choices
    with pytest.raises(openai.PermissionDeniedError, match="'e2e-chat' has the role 'chat'"):
        client.fine_tuning.jobs.create(model="tuneserve-demo", training_file="file-handbook")
    client.api_key = run_keys(served, "rotate", "e2e-chat")["key"]
    assert request_status(served, "GET", "/v1/models", keys["chat"]) == 401
    assert client.models.list().data
    run_keys(served, "revoke", "e2e-chat")
    with pytest.raises(openai.AuthenticationError, match="was revoked"):
        client.models.list()
    client.close()

    page = httpx.get(f"{served.url}/ui/", auth=("me", keys["read"]), timeout=60)
    assert page.status_code == 200
    lines = read_json_lines(served.storage / "audit.jsonl")
    changes = [line for line in lines if line["outcome"] == "done"]
    requests = [line for line in changes if line["method"] != "CLI"]
    assert [(line["key"], line["subject"]) for line in requests] == [("e2e-admin", "best")]
    commands = [line["path"] for line in changes if line["method"] == "CLI"]
    assert commands == [*["keys create"] * 4, "keys rotate", "keys revoke"]
    assert {"e2e-read", "e2e-chat", "e2e-train"} <= {line.get("key") for line in lines}


def test_replica_logs_are_json_with_request_ids(served: Application) -> None:
    request_status(
        served, "GET", "/v1/aliases/e2e-logged?token=hush", headers={"x-request-id": "e2e-1"}
    )
    lines = wait_until(lambda: find_lines("/v1/aliases/e2e-logged"), 30, "the line is written")
    (line,) = lines
    assert line["request_id"] == "e2e-1"
    assert line["message"].startswith("GET /v1/aliases/e2e-logged 401 ")
    assert "hush" not in json.dumps(line)


def find_lines(path: str) -> list[dict[str, Any]]:
    import os

    logs = Path(os.environ["RAY_TMPDIR"]).glob("ray/session_2*/logs/serve/replica_*_Api_*.log")
    lines = [line for log in logs for line in log.read_text().splitlines()]
    return [json.loads(line) for line in lines if path in line]


def test_open_port_without_keys_does_not_start(tmp_path: Path) -> None:
    port = find_free_port()
    deploy = write_deploy_file(ROOT / "deploy.yaml", tmp_path, port)
    settings = yaml.safe_load(deploy.read_text())
    settings["http_options"]["host"] = "0.0.0.0"
    settings["applications"] = settings["applications"][:1]
    deploy.write_text(yaml.safe_dump(settings, sort_keys=False))
    log = tmp_path / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            build_command(Path(deploy.name)),
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=build_environment(),
        )
    try:
        has_reason = wait_until(
            lambda: "no API key exists" in log.read_text(errors="replace"),
            START_TIMEOUT_S,
            "the reason is given",
        )
        assert has_reason
        with pytest.raises(httpx.HTTPStatusError):
            httpx.get(f"http://127.0.0.1:{port}/healthz").raise_for_status()
    finally:
        process.terminate()
        process.wait(60)
