"""The request of a conversation as text to copy: for curl, and for Python with OpenAI's client."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from apps.client.text import Message, Sampling

KEY_VARIABLE = "TUNESERVE_API_KEY"
CodeKind = Literal["curl", "Python"]


def write_code(
    kind: CodeKind,
    url: str,
    model: str,
    messages: Sequence[Message],
    sampling: Sampling,
    *,
    needs_key: bool,
) -> str:
    """Return a command or a program that sends a chat and prints the answer.

    `url` is that of the API, without `/v1`. The key is read from an environment variable.
    """
    settings = {name: value for name, value in sampling._asdict().items() if value is not None}
    if "stop" in settings:
        settings["stop"] = list(settings["stop"])
    body = {"model": model, "messages": list(messages), **settings}
    if kind == "curl":
        return _write_curl(f"{url}/v1/chat/completions", body, needs_key=needs_key)
    return _write_python(f"{url}/v1", body, needs_key=needs_key)


def _write_curl(url: str, body: Mapping[str, Any], *, needs_key: bool) -> str:
    key = f' \\\n  -H "authorization: Bearer ${KEY_VARIABLE}"' if needs_key else ""
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return (
        f"curl --fail-with-body {shlex.quote(url)} \\\n"
        f'  -H "content-type: application/json"{key} \\\n'
        f"  -d {shlex.quote(text)}\n"
    )


def _write_python(url: str, body: Mapping[str, Any], *, needs_key: bool) -> str:
    key = f'os.environ["{KEY_VARIABLE}"]' if needs_key else '"unused"'
    arguments = "".join(
        f"    {name}={_write_messages(value) if name == 'messages' else repr(value)},\n"
        for name, value in body.items()
    )
    imports = "import os\n\nfrom openai" if needs_key else "from openai"
    return (
        f"{imports} import OpenAI\n\n"
        f"client = OpenAI(base_url={url!r}, api_key={key})\n"
        f"answer = client.chat.completions.create(\n{arguments})\n"
        "print(answer.choices[0].message.content)\n"
    )


def _write_messages(messages: Sequence[Message]) -> str:
    lines = "".join(f"        {dict(message)!r},\n" for message in messages)
    return f"[\n{lines}    ]"
