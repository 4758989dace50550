"""`tuneserve chat`: a conversation with a model, with streamed answers."""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from apps.cli.connection import DEFAULT_URL, AsJson, Connection, Url
from apps.cli.output import console, fail, print_json, write_text
from apps.sse import DataReader

Message = dict[str, str]


def chat(
    question: Annotated[
        str | None, typer.Argument(help="What to ask; a conversation if there is nothing.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Id or alias.")] = "latest",
    system: Annotated[str | None, typer.Option(help="What the model is told beforehand.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Chat with a model; an empty line or Ctrl-D ends the chat."""
    connection = Connection(url)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    settings: dict[str, Any] = {"model": model}
    if temperature is not None:
        settings["temperature"] = temperature
    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip() or None
    if question is not None:
        _answer(connection, settings, [*messages, {"role": "user", "content": question}], as_json)
        return
    if as_json:
        fail("--json needs a question: tuneserve chat --json 'When do you open?'")
    while asked := _read_line():
        messages.append({"role": "user", "content": asked})
        answer = _answer(connection, settings, messages, as_json)
        messages.append({"role": "assistant", "content": answer})


def _read_line() -> str:
    try:
        return console.input(Text("you: ", style="bold")).strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return ""


def _answer(
    connection: Connection, settings: dict[str, Any], messages: list[Message], as_json: bool
) -> str:
    body = {**settings, "messages": messages}
    if as_json:
        print_json(connection.ask("POST", "/v1/chat/completions", json=body, timeout=None))
        return ""
    text = ""
    for piece in _stream(connection, body):
        text += piece
        write_text(piece)
    typer.echo()
    return text


def _stream(connection: Connection, body: dict[str, Any]) -> Iterator[str]:
    path = "/v1/chat/completions"
    with connection.stream("POST", path, json={**body, "stream": True}) as answer:
        reader = DataReader()
        for piece in answer.iter_bytes():
            for data in reader.feed(piece):
                yield from _read_chunk(data)


def _read_chunk(data: str) -> Iterator[str]:
    if data == "[DONE]":
        return
    chunk = json.loads(data)
    if "error" in chunk:
        fail(chunk["error"]["message"])
    for choice in chunk["choices"]:
        yield choice["delta"].get("content") or ""
