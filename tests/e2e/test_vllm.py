"""`deploy.vllm.yaml` with Ray's own LLM support; only vLLM's engine, which needs a GPU, is a stub.

Requires the extra `vllm`. `RAY_OVERRIDE_RESOURCES` makes Ray assume two GPUs and enough CPUs.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from openai.types.chat import ChatCompletionUserMessageParam

from benchmarks.application import find_free_port, write_deploy_file
from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import ROOT, Application, start_application
from tests.process_tree import find_descendants, read_command
from tests.tiny_model import build_tiny_model
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

CHAT: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    pytest.importorskip("vllm", reason="the extra 'vllm' is not installed")
    folder = tmp_path_factory.mktemp("places")
    port = find_free_port()
    deploy = write_deploy_file(ROOT / "deploy.vllm.yaml", folder, port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"CPU": 4, "GPU": 2}))
        patch.setenv("RAYLLM_VLLM_ENGINE_CLS", "tests.e2e.stub_engine.StubEngine")
        patch.setenv("RAY_AUTH_MODE", "token")
        application = start_application(deploy, folder, port)
        yield application
        application.stop()


def find_replicas(application: Application) -> dict[int, str]:
    """Return the process titles of the application's replicas by PID."""
    root = psutil.Process(application.process.pid)
    return {one.pid: read_command(one) for one in find_descendants("ServeReplica:", root)}


def send_deploy_file(application: Application, deploy: Path) -> None:
    """Deploy a changed file to the running application, by address: other clusters may exist."""
    found = re.search(r"http://127\.0\.0\.1:\d+", application.log.read_text())
    assert found is not None, "Ray logs the address of its dashboard"
    serve = str(Path(sys.executable).parent / "serve")
    command = [serve, "deploy", "--address", found[0], str(deploy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


def send_chat(application: Application, model: str) -> tuple[str, str]:
    """Send one chat; returns the `x-model-id` of the response and its text."""
    answer = application.client.chat.completions.with_raw_response.create(
        model=model,
        messages=CHAT,
    )
    return answer.headers["x-model-id"], answer.parse().choices[0].message.content or ""


def test_alias_moves_to_new_deployment_without_other_restarts(
    deployed: Application, tmp_path: Path
) -> None:
    model_id, text = send_chat(deployed, "latest")
    assert model_id == "tuneserve-demo"
    assert text == f"{deployed.storage / 'models' / 'tuneserve-demo'} said."
    store = ModelStore(open_storage(deployed.storage))
    store.add(build_tiny_model(tmp_path / "slow"), "slow")
    store.point_alias("latest", "slow")
    assert send_chat(deployed, "latest")[0] == "tuneserve-demo", (
        "no deployment serves the new model yet"
    )
    before = find_replicas(deployed)

    deploy = deployed.storage.parent / "deploy.yaml"
    settings = yaml.safe_load(deploy.read_text())
    (first,) = [one for one in settings["applications"] if one["name"] == "vllm-a"]
    second = {**first, "name": "vllm-b", "route_prefix": "/vllm/b"}
    second["args"] = {**first["args"], "models": ["slow"]}
    settings["applications"].append(second)
    deploy.write_text(yaml.safe_dump(settings))
    send_deploy_file(deployed, deploy)

    answers = []

    def is_latest_slow() -> bool:
        answers.append(send_chat(deployed, "latest")[0])
        return answers[-1] == "slow"

    wait_until(is_latest_slow, 60, "'latest' answers with the new model")
    assert set(answers) == {"tuneserve-demo", "slow"}, (
        "the old model answers while the new one loads"
    )
    assert send_chat(deployed, "tuneserve-demo")[0] == "tuneserve-demo"
    after = find_replicas(deployed)
    assert before.items() <= after.items(), "no existing replica was restarted"
    assert len(after) == len(before) + 2


def test_stream_is_relayed(deployed: Application) -> None:
    chunks = list(
        deployed.client.chat.completions.create(
            model="tuneserve-demo",
            messages=CHAT,
            stream=True,
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.endswith("tuneserve-demo said.")
    assert {chunk.model for chunk in chunks} == {"tuneserve-demo"}


def test_other_sites_and_too_large_bodies_are_rejected(deployed: Application) -> None:
    base_url = f"{deployed.url}/vllm/a/v1"
    assert httpx.get(f"{base_url}/models").json()["data"][0]["id"] == "tuneserve-demo"
    foreign = httpx.get(f"{base_url}/models", headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    large = httpx.post(f"{base_url}/chat/completions", content=b"x" * 8_000_001)
    assert large.status_code == 413
    assert large.json()["error"]["type"] == "invalid_request_error"


def test_request_rejected_by_engine_is_client_error(deployed: Application) -> None:
    body = {"model": "tuneserve-demo", "messages": CHAT, "temperature": "warm"}
    refused = httpx.post(f"{deployed.url}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "temperature" in refused.text
