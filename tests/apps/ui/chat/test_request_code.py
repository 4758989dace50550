"""Requests to copy: they are run, and send what they show."""

import json
import subprocess
import sys

import pytest

from apps.client.text import Message, Sampling
from apps.ui.chat.request_code import CodeKind, write_code
from tests.apps.stub_api import StubApi

SETTINGS = Sampling(0.5, 3, 0.9, 7, ("\n", "it's"))
MESSAGES: list[Message] = [
    {"role": "system", "content": 'Be "brief" and don\'t $HOME `id` \\n'},
    {"role": "user", "content": "Grüße\n\"\"\" ''' {x} 😀"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "And now?"},
]
BODY = {
    "model": "base",
    "messages": MESSAGES,
    "temperature": 0.5,
    "max_tokens": 3,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["\n", "it's"],
}


def run(kind: CodeKind, code: str, environment: dict[str, str]) -> str:
    command = ["bash", "-c", code] if kind == "curl" else [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["curl", "Python"])
@pytest.mark.parametrize("needs_key", [True, False])
def test_code_sends_the_request(api: StubApi, kind: CodeKind, needs_key: bool) -> None:
    code = write_code(kind, api.url, "base", MESSAGES, SETTINGS, needs_key=needs_key)
    environment = {"PATH": "/usr/bin:/bin", "TUNESERVE_API_KEY": "secret"}
    output = run(kind, code, environment)
    if kind == "curl":
        output = json.loads(output)["choices"][0]["message"]["content"]
    assert output.startswith("Hello there")
    sent = {key: value for key, value in api.bodies[-1].items() if key != "stream"}
    assert sent == BODY
    assert (api.keys[-1] == "Bearer secret") == needs_key
    assert "secret" not in code


def test_settings_without_value_are_left_out(api: StubApi) -> None:
    code = write_code("Python", api.url, "base", MESSAGES, Sampling(), needs_key=False)
    run("Python", code, {})
    assert api.bodies[-1] == {"model": "base", "messages": MESSAGES}
