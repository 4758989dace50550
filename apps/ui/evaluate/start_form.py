"""The form that starts an evaluation: its menus, its checks, and refusals at its fields."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import NotRequired, TypedDict, TypeVar

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.client.evaluations import EvaluationRequest
from apps.client.resources import File, Job
from apps.ui.chat.model_menu import ModelMenu, load_menu
from apps.ui.error_messages import describe_error
from apps.ui.evaluate.evaluate_request import EvaluateAction
from apps.ui.fine_tune.data.file_menu import has_unknown_columns, list_file_choices
from apps.ui.runs.run_markup import name_data, name_job
from apps.ui.runs.run_result import has_validation_rows

MAX_ROWS, MAX_TOKENS = 2000, 4096
DEFAULT_ROWS, DEFAULT_TOKENS = 100, 256
MAX_RUNS = 50
TASK = "causal_lm"
_FIELDS = {
    "models": "models",
    "model": "models",
    "file": "rows",
    "job": "rows",
    "training": "rows",
    "max_rows": "max_rows",
    "max_tokens": "max_tokens",
}
"""Fields of the form by the parts of a request."""
GENERAL = "start"
"""The place of a problem that belongs to no field."""

Found = TypeVar("Found")


class MenuEntry(TypedDict):
    """An entry of a menu, in a group of its entries."""

    group: str
    label: str
    value: str
    rows: NotRequired[str]
    """Of a model, the rows of its run: the entry of the other menu that is chosen with it."""


async def read_menus(client: ApiClient) -> dict[str, list[MenuEntry]]:
    """Return the entries of both menus: `models` and `rows`.

    What the visitor's key may not list is left out. Raises `ApiClientError`.
    """
    menu, files, jobs = await asyncio.gather(
        load_menu(client),
        _list_permitted(client.files.list_all("fine-tune")),
        _list_permitted(client.jobs.list_newest(MAX_RUNS)),
    )
    rows = list_rows(files, jobs)
    return {"models": list_models(menu, _find_own_rows(rows, jobs)), "rows": rows}


def _find_own_rows(rows: Sequence[MenuEntry], jobs: Sequence[Job]) -> Mapping[str, str]:
    """Return by the id of a run its entry in the menu of rows: its validation rows, or its file.

    Empty if neither is offered.
    """
    offered = {entry["value"] for entry in rows}
    found = {}
    for job in jobs:
        values = (f"job:{job.id}", f"file:{job.training_file}")
        found[job.id] = next((value for value in values if value in offered), "")
    return found


async def _list_permitted(request: Awaitable[list[Found]]) -> list[Found]:
    try:
        return await request
    except RequestRefusedError:
        return []


def list_models(menu: ModelMenu, own_rows: Mapping[str, str]) -> list[MenuEntry]:
    """Return the entries of the menu of models: aliases, models, adapters.

    `own_rows` has the entries of the menu of rows by the ids of runs.
    """
    entries = []
    for label, value in menu.list_choices():
        model = menu.find(value)
        is_adapter = model is not None and model.kind == "adapter"
        is_alias = model is not None and model.id != value
        group = "Aliases" if is_alias else "Adapters" if is_adapter else "Models"
        entry = MenuEntry(group=group, label=label, value=value)
        if model is not None and (rows := own_rows.get(model.run_id or "")):
            entry["rows"] = rows
        entries.append(entry)
    return entries


def list_rows(files: Sequence[File], jobs: Sequence[Job]) -> list[MenuEntry]:
    """Return the entries of the menu of rows: uploaded files, validation rows of runs."""
    columns = {file.id: find_columns(file.id, jobs) for file in files if has_unknown_columns(file)}
    usable = [
        file
        for file in files
        if _has_answers(file) and (file.status != "error" or columns.get(file.id))
    ]
    entries = []
    for label, file_id in list_file_choices(usable, time.time()):
        named = "".join(f" · {part}: {name}" for part, name in columns.get(file_id, {}).items())
        entries.append(MenuEntry(group="Files", label=f"{label}{named}", value=f"file:{file_id}"))
    return entries + [
        MenuEntry(
            group="Validation rows of runs",
            label=_label_validation_rows(name_job(job), name_data(job)),
            value=f"job:{job.id}",
        )
        for job in jobs
        if has_validation_rows(job)
    ]


def find_columns(file_id: str, jobs: Sequence[Job]) -> Mapping[str, object]:
    """Return the columns with which the newest of the runs that succeeded read a file.

    If none succeeded, those of the newest run; empty if no run read it. `jobs` are ordered, the
    newest first.
    """
    for job in sorted(jobs, key=lambda job: job.status != "succeeded"):
        columns = job.training.get("columns")
        is_text = job.training.get("task", TASK) == TASK
        if file_id in (job.training_file, job.validation_file) and is_text and columns:
            return columns if isinstance(columns, Mapping) else {}
    return {}


async def complete_request(client: ApiClient, request: EvaluationRequest) -> EvaluationRequest:
    """Add the columns of a file that have names of their own, as `find_columns` finds them.

    Raises `ApiClientError`.
    """
    file_id = request.get("file")
    if file_id is None or not has_unknown_columns(await client.files.get(file_id)):
        return request
    jobs = await client.jobs.list_newest(MAX_RUNS)
    columns = find_columns(file_id, jobs)
    return {**request, "training": {"columns": columns}} if columns else request


def _label_validation_rows(name: str, data: str) -> str:
    return f"{name}: validation rows ({data})"


def _has_answers(file: File) -> bool:
    """Return whether the rows of a file may have answers for a language model."""
    return file.check is None or file.check.task in (None, TASK)


def read_form(asked: EvaluateAction) -> tuple[EvaluationRequest | None, dict[str, str]]:
    """Return the request for an evaluation, or None and the problems by their fields."""
    problems: dict[str, str] = {}
    models = [name for name in asked.models if name]
    if not models:
        problems["models"] = "Choose a model."
    elif len(set(models)) < len(models):
        problems["second_model"] = "Both models are the same: choose another one, or none."
    source, _, identifier = asked.rows.partition(":")
    if source not in ("file", "job") or not identifier:
        problems["rows"] = "Choose rows: a file, or the validation rows of a run."
    numbers: dict[str, int] = {}
    for field, text, most in (
        ("max_rows", asked.max_rows, MAX_ROWS),
        ("max_tokens", asked.max_tokens, MAX_TOKENS),
    ):
        number = _read_number(text, most)
        if number is None:
            problems[field] = f"Expected a whole number from 1 to {most:,}, got {text!r}."
        else:
            numbers[field] = number
    if problems:
        return None, problems
    request: EvaluationRequest = {
        "models": models,
        "max_rows": numbers["max_rows"],
        "max_tokens": numbers["max_tokens"],
    }
    if source == "file":
        request["file"] = identifier
    else:
        request["job"] = identifier
    return request, {}


def _read_number(text: str, most: int) -> int | None:
    digits = text.strip()
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(most))
    return int(digits) if is_number and 1 <= int(digits) <= most else None


def explain_refusal(exc: ApiClientError) -> Mapping[str, str]:
    """Return why the API did not start an evaluation, by the field of the form."""
    param = exc.param if isinstance(exc, RequestRefusedError) else None
    name, _, rest = (param or "").replace("[", ".").partition(".")
    field = _FIELDS.get(name, GENERAL)
    if field == "models" and rest.startswith("1"):
        field = "second_model"
    return {field: describe_error(exc)}
