"""`tuneserve jobs`: create, watch and control fine-tuning jobs from a terminal."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from apps.cli.connection import DEFAULT_URL, AsJson, Connection, Url, locate
from apps.cli.files import send_file
from apps.cli.output import Rows, decode, fail, print_json, show, show_time, write_bytes
from apps.cli.watch import FINAL, JOBS, watch_job

jobs = typer.Typer(help="Begin fine-tunes, watch, pause and end them.", no_args_is_help=True)

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
        help="A further file of rows, one here or an id, and how often each row is seen in an "
        "epoch (default 1); repeatable.",
    ),
]
Suffix = Annotated[str | None, typer.Option(help="Becomes part of the new model's id.")]
Watch = Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")]


@jobs.command()
def create(
    rows: Annotated[str, typer.Argument(help="File of rows: one here, or the id of one sent.")],
    model: Annotated[str, typer.Option(help="Model to start from.")] = "latest",
    mix: Mixed = None,
    validation: Annotated[str | None, typer.Option(help="File of rows to evaluate on.")] = None,
    suffix: Suffix = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows.")] = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher one go first.")] = 0,
    settings: Settings = None,
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a fine-tuning job; it runs whether it is watched or not."""
    connection = Connection(url)
    training = read_settings(settings)
    if epochs is not None:
        training["epochs"] = epochs
    others = [read_mixed(one) for one in mix or ()]  # before anything is sent
    training_file = send_if_here(connection, rows)
    body = {
        "model": model,
        "training_file": training_file,
        "training_files": _send_mix(connection, training_file, others),
        "validation_file": validation and send_if_here(connection, validation),
        "suffix": suffix,
        "priority": priority,
        "training": training,
    }
    _begin(connection, JOBS, body, watch=watch, as_json=as_json)


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
    body: dict[str, Any] = {"training": read_settings(settings)}
    if suffix is not None:
        body["suffix"] = suffix
    _begin(Connection(url), locate(JOBS, job_id, "clone"), body, watch=watch, as_json=as_json)


@jobs.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, help="Jobs at most.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show jobs, newest first."""
    show(Connection(url).list_all(JOBS, limit), as_json, _render_jobs)


@jobs.command("show")
def show_job(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one job."""
    show(Connection(url).ask("GET", locate(JOBS, job_id)), as_json, _render_job)


@jobs.command()
def watch(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a job until it ends: its progress, loss and events; only events with --json.

    Ctrl-C stops watching, not the job.
    """
    watch_job(Connection(url), job_id, as_json=as_json)


@jobs.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a job immediately."""
    _change(Connection(url), job_id, "cancel", as_json)


@jobs.command()
def pause(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Pause a job: it finishes its step, saves a checkpoint and frees its resources."""
    _change(Connection(url), job_id, "pause", as_json)


@jobs.command()
def resume(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Resume a paused, failed or cancelled job."""
    _change(Connection(url), job_id, "resume", as_json)


@jobs.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a job that has ended, with its checkpoints; its models are kept."""
    answer = Connection(url).ask("DELETE", locate(JOBS, job_id))
    show(answer, as_json, lambda _: f"deleted {job_id}")


@jobs.command()
def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    tail: Annotated[int, typer.Option(min=0, help="Bytes of its end to begin with.")] = 64_000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print a job's log; as JSON lines with --json."""
    pieces = _read_log(Connection(url), job_id, tail, follow=follow)
    if not as_json:
        write_bytes(pieces)
        return
    for text in filter(None, decode(pieces)):
        print_json({"text": text})


@jobs.command()
def checkpoints(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the checkpoints that a job still has; each can be used as a model, by the model's id."""
    found = Connection(url).list_all(locate(JOBS, job_id, "checkpoints"))
    show(found, as_json, _render_checkpoints)


def send_if_here(connection: Connection, named: str) -> str:
    """Return the id of a file of rows; upload it first if it is a local file."""
    if Path(named).is_file():
        return str(send_file(connection, Path(named))["id"])
    if not named.startswith("file-"):
        fail(f"there is no file {named!r} here, and it is no id of a file, as in 'file-…'")
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


def _send_mix(
    connection: Connection, training_file: str, others: list[tuple[str, float]]
) -> list[dict[str, Any]] | None:
    """Return the ids and weights of a mix; upload local files. None if there is only one file."""
    if not others:
        return None
    mixed = [{"file": send_if_here(connection, name), "weight": weight} for name, weight in others]
    return [{"file": training_file, "weight": 1.0}, *mixed]


def read_settings(given: list[str] | None) -> dict[str, Any]:
    """Parse settings from `NAME=VALUE`; a value is JSON, or else a string."""
    settings: dict[str, Any] = {}
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


def _read_log(connection: Connection, job_id: str, tail: int, *, follow: bool) -> Iterator[bytes]:
    """Yield each byte of a log exactly once, however often the connection is lost."""
    path = locate(JOBS, job_id, "logs")
    params: dict[str, Any] = {"tail": tail, "follow": follow}
    has_ended = False
    while True:
        is_whole = False
        with connection.stream("GET", path, may_be_cut=follow, params=params) as answer:
            offset = int(answer.headers["x-log-offset"])
            for piece in answer.iter_bytes():
                offset += len(piece)
                yield piece
            is_whole = True
        if is_whole and (has_ended or not follow):
            return
        connection.wait_until_back()
        job = connection.ask("GET", locate(JOBS, job_id), is_patient=True)
        has_ended = job["status"] in FINAL  # one more request fetches what was added
        params = {"offset": offset, "follow": True}


def _begin(
    connection: Connection, path: str, body: dict[str, Any], *, watch: bool, as_json: bool
) -> None:
    job = connection.ask("POST", path, json=body)
    if watch:
        watch_job(connection, job["id"], as_json=as_json)
    else:
        show(job, as_json, lambda begun: begun["id"])


def _change(connection: Connection, job_id: str, change: str, as_json: bool) -> None:
    job = connection.ask("POST", locate(JOBS, job_id, change))
    show(job, as_json, lambda changed: f"{job_id} is {changed['status']}")


def _render_jobs(found: list[dict[str, Any]]) -> Rows:
    cells = [
        (job["id"], job["model"], show_time(job["created_at"]), job["status"], _say_more(job))
        for job in found
    ]
    return Rows(cells, ("job", "from", "begun", "status", ""))


def _say_more(job: dict[str, Any]) -> str:
    if job["status"] == "running" and (progress := job["progress"]):
        return f"step {progress['step']} of {progress['num_steps']}, loss {progress['loss']:.3f}"
    if job["error"]:
        return str(job["error"]["message"])[:60]
    return str(job["waiting_for"] or job["fine_tuned_model"] or "")


def _render_job(job: dict[str, Any]) -> Rows:
    properties = {
        "job": job["id"],
        "status": job["status"],
        "waiting for": job["waiting_for"],
        "from": job["model"],
        "rows": job["training_file"],
        "rows to evaluate on": job["validation_file"],
        "model": job["fine_tuned_model"],
        "begun": show_time(job["created_at"]),
        "ended": show_time(job["finished_at"]),
        "expected to end": show_time(job["estimated_finish"]),
        "trained tokens": job["trained_tokens"],
        "figures": ", ".join(job["result_files"]),
        "error": job["error"] and job["error"]["message"],
        "settings": ", ".join(f"{name}={value}" for name, value in job["training"].items()),
    }
    return Rows([(name, str(value)) for name, value in properties.items() if value])


def _render_checkpoints(found: list[dict[str, Any]]) -> Rows:
    cells = [
        (
            checkpoint["fine_tuned_model_checkpoint"],
            str(checkpoint["step_number"]),
            f"{checkpoint['metrics']['train_loss']:.4f}",
            _show_loss(checkpoint["metrics"]["valid_loss"]),
        )
        for checkpoint in found
    ]
    return Rows(cells, ("model", "step", "train loss", "validation loss"))


def _show_loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"
