"""`tuneserve jobs`: create, watch and control fine-tuning jobs from a terminal."""

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from apps.cli.archives.folder_archive import pack_folder
from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.files import send_file
from apps.cli.output import Rows, decode, fail, print_json, show, show_time, write_bytes
from apps.cli.watch import watch_job
from apps.client.client import ApiClient
from apps.client.jobs import JobChanges, JobExtension, MixedFile
from apps.client.resources import Job, JobCheckpoint

jobs = typer.Typer(
    help="Create, watch, pause, cancel, extend and delete fine-tuning jobs.", no_args_is_help=True
)

JobId = Annotated[str, typer.Argument(help="Id of a job.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the training spec; repeatable."),
]
Mixed = Annotated[
    list[str] | None,
    typer.Option(
        "--mix",
        metavar="FILE=WEIGHT",
        help="An additional file of rows (a local path or a file id), and how often each row is "
        "used per epoch (default 1); repeatable.",
    ),
]
Suffix = Annotated[str | None, typer.Option(help="Becomes part of the new model's id.")]
Watch = Annotated[bool, typer.Option("--watch", help="Watch the job until it ends.")]


@jobs.command()
def create(
    rows: Annotated[
        str,
        typer.Argument(
            help="File of rows: a local path or a file id; for images also a local folder."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model to fine-tune.")] = "latest",
    mix: Mixed = None,
    validation: Annotated[str | None, typer.Option(help="File of rows to evaluate on.")] = None,
    suffix: Suffix = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="What is learned: 'causal_lm', 'preference', 'sequence_classification' or "
            "'image_classification'; by default what suits the model."
        ),
    ] = None,
    loop: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FUNCTION",
            help="A training function that the operator allows, in place of the built-in loop.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of passes over the rows.")] = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher priority start first.")] = 0,
    settings: Settings = None,
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a fine-tuning job; it runs whether it is watched or not."""
    training = read_settings(settings)
    if task is not None:
        training["task"] = task
    if loop is not None:
        training["loop"] = loop
    if epochs is not None:
        training["epochs"] = epochs
    others = [read_mixed(one) for one in mix or ()]  # before anything is sent

    async def send(api: ApiClient) -> Job:
        training_file = await upload_if_local(api, rows)
        return await api.jobs.create(
            {
                "model": model,
                "training_file": training_file,
                "training_files": await _send_mix(api, training_file, others),
                "validation_file": await upload_if_local(api, validation) if validation else None,
                "suffix": suffix,
                "priority": priority,
                "training": training,
            }
        )

    _begin(url, send, watch=watch, as_json=as_json)


@jobs.command()
def clone(
    job_id: JobId,
    suffix: Suffix = None,
    settings: Settings = None,
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a copy of a job, with some changes."""
    changes: JobChanges = {"training": read_settings(settings), "suffix": suffix}
    _begin(url, lambda api: api.jobs.clone(job_id, changes), watch=watch, as_json=as_json)


@jobs.command()
def extend(
    job_id: JobId,
    epochs: Annotated[
        int | None,
        typer.Option(help="Number of passes over the rows in all, the earlier ones included."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="Number of steps in all; only for a job that has max_steps."),
    ] = None,
    suffix: Suffix = None,
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Continue the training of a job that has succeeded in a new job, for more epochs."""
    extension: JobExtension = {"epochs": epochs, "max_steps": max_steps, "suffix": suffix}
    _begin(url, lambda api: api.jobs.extend(job_id, extension), watch=watch, as_json=as_json)


@jobs.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show jobs, newest first."""
    found = run_with_api(url, lambda api: api.jobs.list_newest(limit))
    show([job.raw for job in found], as_json, lambda: _render_jobs(found))


@jobs.command("show")
def show_job(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one job."""
    job = run_with_api(url, lambda api: api.jobs.get(job_id))
    show(job.raw, as_json, lambda: _render_job(job))


@jobs.command()
def watch(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a job until it ends: its progress, loss and events; with --json, only events.

    Ctrl-C stops watching, not the job.
    """
    watch_job(url, job_id, as_json=as_json)


@jobs.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a job immediately."""
    _change(url, lambda api: api.jobs.cancel(job_id), as_json)


@jobs.command()
def pause(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Pause a job: it finishes its step, saves a checkpoint and frees its resources."""
    _change(url, lambda api: api.jobs.pause(job_id), as_json)


@jobs.command()
def resume(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Resume a paused, failed or cancelled job."""
    _change(url, lambda api: api.jobs.resume(job_id), as_json)


@jobs.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a job that has ended, with its checkpoints; its models are kept."""
    answer = run_with_api(url, lambda api: api.jobs.delete(job_id))
    show(answer, as_json, lambda: f"deleted {job_id}")


@jobs.command()
def logs(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")
    ] = False,
    tail: Annotated[
        int, typer.Option(min=0, help="Number of bytes at the end to print first.")
    ] = 64_000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print a job's log; as JSON lines with --json."""

    async def print_log(api: ApiClient) -> None:
        async with aclosing(api.job_outputs.stream_log(job_id, tail, follow=follow)) as pieces:
            if not as_json:
                await write_bytes(pieces)
                return
            async for text in decode(pieces):
                if text:
                    print_json({"text": text})

    run_with_api(url, print_log)


@jobs.command()
def checkpoints(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the checkpoints that a job still has; each can be used as a model, by the model's id."""
    found = run_with_api(url, lambda api: api.job_outputs.list_checkpoints(job_id))
    show([checkpoint.raw for checkpoint in found], as_json, lambda: _render_checkpoints(found))


async def upload_if_local(api: ApiClient, named: str) -> str:
    """Return the id of a file of rows; upload it first if it is a local file, or a folder."""
    if Path(named).is_dir():
        with pack_folder(Path(named)) as packed:
            return (await send_file(api, packed)).id
    if Path(named).is_file():
        return (await send_file(api, Path(named))).id
    if not named.startswith("file-"):
        fail(f"{named!r} is neither a local file nor a file id, as in 'file-…'")
    return named


def read_mixed(given: str) -> tuple[str, float]:
    """Parse a file and its weight from `FILE=WEIGHT`, or from `FILE` for the weight 1."""
    name, is_set, weight = given.rpartition("=")
    if not is_set or Path(given).is_file():
        return given, 1.0
    try:
        return name, float(weight)
    except ValueError:
        fail(f"--mix {given!r}: the weight is {weight!r}, expected a number, as in more.jsonl=0.5")


async def _send_mix(
    api: ApiClient, training_file: str, others: list[tuple[str, float]]
) -> list[MixedFile] | None:
    """Return the ids and weights of a mix; upload local files. None if there is only one file."""
    if not others:
        return None
    mixed: list[MixedFile] = [{"file": training_file, "weight": 1.0}]
    for name, weight in others:
        mixed.append({"file": await upload_if_local(api, name), "weight": weight})
    return mixed


def read_settings(given: list[str] | None) -> dict[str, object]:
    """Parse settings from `NAME=VALUE`; a value is JSON, or else a string."""
    settings: dict[str, object] = {}
    for one in given or ():
        name, is_set, value = one.partition("=")
        if not is_set or not name:
            fail(f"--set {one!r}: expected NAME=VALUE, as in --set learning_rate=0.001")
        try:
            settings[name] = json.loads(value, parse_constant=_refuse_constant)
        except ValueError:
            settings[name] = value
    return settings


def _refuse_constant(text: str) -> NoReturn:
    """Reject NaN and infinities, which are not JSON; the server refuses them as strings."""
    raise ValueError(text)


def _begin(
    url: str, create: Callable[[ApiClient], Awaitable[Job]], *, watch: bool, as_json: bool
) -> None:
    job = run_with_api(url, create)
    if watch:
        watch_job(url, job.id, as_json=as_json)
    else:
        show(job.raw, as_json, lambda: job.id)


def _change(url: str, change: Callable[[ApiClient], Awaitable[Job]], as_json: bool) -> None:
    job = run_with_api(url, change)
    show(job.raw, as_json, lambda: f"{job.id} is {job.status}")


def _render_jobs(found: list[Job]) -> Rows:
    cells = [
        (job.id, job.model, show_time(job.created_at), job.status, _summarize_state(job))
        for job in found
    ]
    return Rows(cells, ("job", "base model", "created", "status", ""))


def _summarize_state(job: Job) -> str:
    progress = job.progress
    if job.status == "running" and progress is not None:
        loss = "" if progress.loss is None else f", training loss {progress.loss:.3f}"
        total = f" of {progress.num_steps}" if progress.num_steps else ""
        return f"step {progress.step}{total}{loss}"
    if job.error is not None:
        return job.error.message[:60]
    return job.waiting_for or job.fine_tuned_model or ""


def _render_job(job: Job) -> Rows:
    properties = {
        "job": job.id,
        "status": job.status,
        "waiting for": job.waiting_for,
        "base model": job.model,
        "extends": job.extended_from,
        "training file": job.training_file,
        "validation file": job.validation_file,
        "model": job.fine_tuned_model,
        "created": show_time(job.created_at),
        "ended": show_time(job.finished_at),
        "estimated finish": show_time(job.estimated_finish),
        "trained tokens": job.trained_tokens,
        "result files": ", ".join(job.result_files),
        "error": job.error and job.error.message,
        "settings": ", ".join(f"{name}={value}" for name, value in job.training.items()),
    }
    return Rows([(name, str(value)) for name, value in properties.items() if value])


def _render_checkpoints(found: list[JobCheckpoint]) -> Rows:
    cells = [
        (
            checkpoint.fine_tuned_model_checkpoint,
            str(checkpoint.step_number),
            _show_loss(checkpoint.metrics.train_loss),
            _show_loss(checkpoint.metrics.valid_loss),
        )
        for checkpoint in found
    ]
    return Rows(cells, ("model", "step", "training loss", "validation loss"))


def _show_loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"
