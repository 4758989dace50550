"""The model, the data and the settings of an earlier run, to start again with changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import File, Job
from apps.ui.error_messages import describe_error
from apps.ui.fine_tune.setting_export import list_changes

Choices = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class FormerRun:
    """What the page shows of a run, and a notice about it; None: what it shows without one.

    `name` is the name that was given to its result.
    """

    notice: str
    model: str | None = None
    data: str | None = None
    defaults: dict[str, Any] | None = None
    entered: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


async def read_former_run(
    client: ApiClient, run_id: str, models: Choices, files: Sequence[File]
) -> FormerRun:
    """Read the model, the data and the settings of a run, as far as they still exist."""
    try:
        job = await client.jobs.get(run_id)
        if job.model not in {model for _, model in models}:
            return FormerRun(f"The model of run {run_id}, {job.model}, does not exist any more.")
        task = job.training.get("task")
        found = await client.jobs.get_defaults(job.model, task if isinstance(task, str) else None)
    except ApiClientError as exc:
        return FormerRun(
            f"The settings of run {run_id[:80]} cannot be shown. {describe_error(exc)}"
        )
    notice = f"These are the model, the data and the settings of run {_name_run(job)}."
    data = job.training_file if any(file.id == job.training_file for file in files) else None
    if data is None:
        notice += f" Its data, {job.training_filename or 'a file'}, was deleted: choose other data."
    defaults = found.model_dump(by_alias=True)
    return FormerRun(
        notice,
        job.model,
        data,
        defaults,
        list_changes(defaults, job.training),
        job.user_provided_suffix or "",
    )


def _name_run(job: Job) -> str:
    return f"{job.user_provided_suffix} ({job.id})" if job.user_provided_suffix else job.id
