"""The job that the fields describe: its estimate, its start, and its settings as text."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.jobs import JobRequest
from apps.client.resources import Estimate, Job
from apps.ui.error_messages import describe_error
from apps.ui.fine_tune.data.file_menu import is_being_checked
from apps.ui.fine_tune.fine_tune_request import FieldsRequest, FineTuneAction
from apps.ui.fine_tune.setting_export import read_changes, write_text
from apps.ui.fine_tune.setting_fields import FieldError
from apps.ui.fine_tune.setting_form import SettingForm
from apps.ui.fine_tune.setting_problems import Verdict, explain
from apps.ui.fine_tune.setting_texts import PlannedJob
from apps.ui.fine_tune.start_bar import render_estimate

NO_CHOICE = "Choose a model and data first."
OTHER_FIELDS = "The settings of this model have changed: choose it again, or reload the page."

Answer = TypeVar("Answer", Estimate, Job)


class UnplannedError(Exception):
    """The fields do not describe a job, or the API refuses it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


async def check_job(client: ApiClient, asked: FieldsRequest) -> Mapping[str, Any]:
    """Return the verdict on the job, and what it will take as HTML.

    Also returns whether the file is still being checked, if it was not checked before.
    """
    verdict, estimate = Verdict(), ""
    try:
        estimate = render_estimate(await _ask(client, asked, client.jobs.estimate))
    except UnplannedError as exc:
        verdict = exc.verdict
    message = {**verdict.to_message(), "estimate": estimate}
    if asked.waits_for_file and asked.data:
        message["is_being_checked"] = await is_being_checked(client, asked.data)
    return message


async def start_job(client: ApiClient, asked: FieldsRequest) -> Mapping[str, Any]:
    """Create the job; return its id, or the verdict that refuses it."""
    try:
        job = await _ask(client, asked, client.jobs.create)
    except UnplannedError as exc:
        return {"is_done": False, "verdict": exc.verdict.to_message()}
    return {"is_done": True, "run": job.id}


async def _ask(
    client: ApiClient, asked: FieldsRequest, request: Callable[[JobRequest], Awaitable[Answer]]
) -> Answer:
    """Send the job to the API; raises `UnplannedError`."""
    if not asked.model or not asked.data:
        raise UnplannedError(Verdict(reason=NO_CHOICE))
    keys: frozenset[str] = frozenset()
    try:
        form = await read_form(client, asked)
        keys = frozenset(form.schemas)
        if not form.has_fields(asked.fields):
            raise UnplannedError(Verdict(reason=OTHER_FIELDS))
        job: JobRequest = {
            "model": asked.model,
            "training_file": asked.data,
            "suffix": asked.name.strip() or None,
            "training": form.plan(asked.fields),
        }
        return await request(job)
    except (FieldError, ApiClientError) as exc:
        raise UnplannedError(explain(exc, keys)) from exc


async def read_form(client: ApiClient, asked: FieldsRequest) -> SettingForm:
    """Read the settings of the chosen model and task; raises `ApiClientError`."""
    found = await client.jobs.get_defaults(asked.model, asked.task or None)
    return SettingForm(found.model_dump(by_alias=True))


async def write_settings(client: ApiClient, asked: FineTuneAction) -> str:
    """Return the settings as text for a program, or why there is none."""
    if not asked.model or not asked.data:
        return NO_CHOICE
    try:
        form = await read_form(client, asked)
        if not form.has_fields(asked.fields):
            return OTHER_FIELDS
        filename = (await client.files.get(asked.data)).filename
        training = form.plan(asked.fields)
    except FieldError as exc:
        return str(exc)
    except ApiClientError as exc:
        return describe_error(exc)
    job = PlannedJob(asked.model, asked.data, filename, asked.name.strip(), training)
    return write_text(asked.form, job, form.defaults, asked.origin)


async def fill_in_settings(client: ApiClient, asked: FineTuneAction) -> Mapping[str, Any]:
    """Return what the settings of a spec enter into the fields, or what is wrong with it."""
    if not asked.model:
        return {"is_done": False, "problem": NO_CHOICE}
    try:
        form = await read_form(client, asked)
        return {"is_done": True, "entered": read_changes(asked.text, form.defaults)}
    except ValueError as exc:
        return {"is_done": False, "problem": str(exc)}
    except ApiClientError as exc:
        return {"is_done": False, "problem": describe_error(exc)}
