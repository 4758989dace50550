"""`tuneserve chat`: a conversation with a model, with streamed answers."""

import sys
from contextlib import aclosing
from typing import Annotated

import typer
from rich.text import Text

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.output import console, fail, print_json, write_text
from apps.client.client import ApiClient
from apps.client.text import Message, Sampling


def chat(
    question: Annotated[
        str | None, typer.Argument(help="The question; without one, a conversation starts.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Id or alias.")] = "latest",
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 is greedy decoding.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Chat with a model; an empty line or Ctrl-D ends the chat."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    sampling = Sampling(temperature)
    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip() or None
    if question is not None:
        messages.append({"role": "user", "content": question})
        if as_json:
            answer = run_with_api(
                url, lambda api: api.text.complete_chat(model, messages, sampling)
            )
            print_json(answer)
        else:
            run_with_api(url, lambda api: _print_answer(api, model, messages, sampling))
        return
    if as_json:
        fail("--json needs a question: tuneserve chat --json 'When do you open?'")
    while asked := _read_line():
        messages.append({"role": "user", "content": asked})
        text = run_with_api(url, lambda api: _print_answer(api, model, messages, sampling))
        messages.append({"role": "assistant", "content": text})


def _read_line() -> str:
    try:
        return console.input(Text("you: ", style="bold")).strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return ""


async def _print_answer(
    api: ApiClient, model: str, messages: list[Message], sampling: Sampling
) -> str:
    """Print an answer as it is streamed, and return it."""
    text = ""
    async with aclosing(api.text.stream_chat(model, messages, sampling)) as pieces:
        async for piece in pieces:
            text += piece.text
            write_text(piece.text)
    typer.echo()
    return text
