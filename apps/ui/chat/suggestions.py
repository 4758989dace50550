"""Questions to suggest for a model: from the rows that it learned."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.model_resources import Model

HANDBOOK_QUESTIONS = (
    "When does the workshop open?",
    "Whom do I ask for holiday?",
    "What is the capital of France?",
    "What is two plus three?",
)
"""Suggested for the bundled base model, to show that it does not know the bundled data."""
MAX_SUGGESTIONS = 4
MAX_CHARACTERS = 120
MAX_CANDIDATES = 40
"""Suggestions are spread over the first questions: neighbours are often variants of one."""
READ_BYTES = 65_536
_USER_ROLES = ("user", "human")


async def suggest_questions(client: ApiClient, model: Model | None) -> list[str]:
    """Return the first questions of the file that a model was fine-tuned on.

    Return none if the visitor's key may not read the run or its file, or if the file is compressed
    or binary.
    """
    if model is None:
        return []
    if model.base:
        return list(HANDBOOK_QUESTIONS) if model.demonstration else []
    if model.run_id is None:
        return []
    try:
        job = await client.jobs.get(model.run_id)
        start = await _read_start(client, job.training_file)
    except ApiClientError:
        return []
    columns = job.training.get("columns")
    return pick_questions(start, columns if isinstance(columns, Mapping) else {})


async def _read_start(client: ApiClient, file_id: str) -> bytes:
    """Return the first bytes of a file; raises `ApiClientError`."""
    start = b""
    async with client.files.download(file_id) as pieces:
        async for piece in pieces:
            start += piece
            if len(start) >= READ_BYTES:
                break
    return start[:READ_BYTES]


def pick_questions(start: bytes, columns: Mapping[str, Any]) -> list[str]:
    """Return some of the first short questions in the start of a file of rows.

    `columns` maps the keys of rows to those that the file uses, as in the settings of a job.
    """
    found: dict[str, None] = {}
    for row in _read_rows(start):
        question = _find_question(row, columns)
        if question and len(question) <= MAX_CHARACTERS and "\n" not in question:
            found.setdefault(question)
        if len(found) == MAX_CANDIDATES:
            break
    distance = max(1, len(found) // MAX_SUGGESTIONS)
    return list(found)[::distance][:MAX_SUGGESTIONS]


def _read_rows(start: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the complete rows in the start of a JSONL, JSON or CSV file."""
    text = start.decode("utf-8-sig", errors="ignore")
    if "\0" in text:
        return
    if text.lstrip()[:1] in ("{", "["):
        yield from _read_json_rows(text)
    else:
        header, _, _ = text.partition("\n")
        reader = csv.DictReader(
            text.splitlines(keepends=True), delimiter="\t" if "\t" in header else ","
        )
        with suppress(csv.Error):
            yield from reader


def _read_json_rows(text: str) -> Iterator[Mapping[str, Any]]:
    decoder = json.JSONDecoder()
    position = 0
    with suppress(ValueError, RecursionError):  # the last row is cut
        while True:
            while position < len(text) and text[position] in " \t\r\n,[":
                position += 1
            row, position = decoder.raw_decode(text, position)
            if isinstance(row, dict):
                yield row


def _find_question(row: Mapping[str, Any], columns: Mapping[str, Any]) -> str:
    """Return the first message of the user in a row; empty if it has none."""

    def read(key: str) -> Any:
        return row.get(str(columns.get(key, key)))

    preference = read("input")
    nested = preference.get("messages") if isinstance(preference, Mapping) else None
    for messages in (read("messages"), read("conversations"), nested, read("prompt")):
        if question := _find_user_message(messages):
            return question
    for key in ("prompt", "instruction"):
        if isinstance(text := read(key), str) and text.strip():
            more = preference if key == "instruction" and isinstance(preference, str) else ""
            return f"{text.strip()}\n{more.strip()}".strip()
    return ""


def _find_user_message(messages: Any) -> str:
    if isinstance(messages, str) and messages.startswith("["):  # a list in a cell of a CSV file
        with suppress(ValueError, RecursionError):
            messages = json.loads(messages)
    if not isinstance(messages, list):
        return ""
    for message in _list_mappings(messages):
        role = message.get("role", message.get("from"))
        text = message.get("content", message.get("value"))
        if role in _USER_ROLES and isinstance(text, str):
            return text.strip()
    return ""


def _list_mappings(values: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)]
