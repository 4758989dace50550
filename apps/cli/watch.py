"""Live view of a job in a terminal: a progress bar, the loss curve and the last events."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from apps.cli.connection import Connection, locate
from apps.cli.output import console, escape_controls, notes, print_json, say
from apps.sse import DataReader

JOBS = "/v1/fine_tuning/jobs"
FINAL = frozenset({"succeeded", "failed", "cancelled"})
_POLL_S = 1.0
_NUM_EVENTS = 6
_CURVE_HEIGHT, _MIN_CURVE_WIDTH, _MAX_CURVE_WIDTH, _MARGIN = 10, 20, 100, 16
_MARKS = {"info": "·", "warn": "!", "error": "✗"}
_STYLES = {"warn": "yellow", "error": "red"}
_INTERRUPTED = 130  # the shells' exit status for Ctrl-C


def watch_job(connection: Connection, job_id: str, *, as_json: bool) -> NoReturn:
    """Follow a job until it ends, and exit with 0 if it succeeded, with 130 on Ctrl-C, else with 1.

    On a terminal the job is drawn; elsewhere its events are streamed as lines. With `as_json` they
    are always streamed, as JSON lines.
    """
    try:
        if as_json or not console.is_terminal:
            for event in follow_events(connection, job_id):
                if as_json:
                    print_json(event)
                else:
                    say(_write_event(event))
        else:
            _draw(connection, job_id)
    except KeyboardInterrupt:
        notes.print(f"not watched any more; {job_id} goes on")
        raise typer.Exit(_INTERRUPTED) from None
    job = connection.ask("GET", locate(JOBS, job_id), is_patient=True)
    if job["status"] == "succeeded" and not as_json:
        say(f"{job['fine_tuned_model']} is there; ask it: tuneserve chat")
    raise typer.Exit(0 if job["status"] == "succeeded" else 1)


def follow_events(connection: Connection, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield a job's events until it ends, each once, however often the connection is lost."""
    path, last = locate(JOBS, job_id, "events"), None
    while True:
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        reader = DataReader()
        with connection.stream("GET", path, may_be_cut=True, headers=headers) as answer:
            if answer.status_code == 204:
                return
            for piece in answer.iter_bytes():
                for data in reader.feed(piece):
                    event = json.loads(data)
                    last = event["id"]
                    yield event
        connection.wait_until_back()


def _draw(connection: Connection, job_id: str) -> None:
    metrics: list[dict[str, float]] = []
    with Live(console=console, auto_refresh=False) as live:
        while True:
            job = connection.ask("GET", locate(JOBS, job_id), is_patient=True)
            metrics = read_new_metrics(connection, job_id, metrics)
            path, query = locate(JOBS, job_id, "events"), {"limit": _NUM_EVENTS}
            events = connection.ask("GET", path, is_patient=True, params=query)["data"][::-1]
            live.update(draw_job(job, metrics, events, console.width), refresh=True)
            if job["status"] in FINAL:
                return
            time.sleep(_POLL_S)


def read_new_metrics(
    connection: Connection, job_id: str, known: list[dict[str, float]]
) -> list[dict[str, float]]:
    """Return `known` with the metrics of new steps, and without steps that a resume rolled back."""
    last = known[-1]["step"] if known else 0
    path, query = locate(JOBS, job_id, "metrics"), {"after_step": max(0, int(last) - 1)}
    new = connection.ask("GET", path, is_patient=True, params=query)["data"]
    if known and (not new or new[0] != known[-1]):
        return list(connection.ask("GET", path, is_patient=True)["data"])
    return [*known, *new[1 if known else 0 :]]


def draw_job(
    job: dict[str, Any], metrics: list[dict[str, float]], events: list[dict[str, Any]], width: int
) -> RenderableType:
    """Draw a job: its status, progress, loss curve and last events."""
    parts: list[RenderableType] = [Text(f"{job['id']}: {job['status']}", style="bold")]
    if job["waiting_for"]:
        parts.append(Text(escape_controls(job["waiting_for"])))
    if metrics:
        parts += [_draw_bar(metrics[-1]), Text(draw_curve(metrics, width))]
    for event in events:
        style = _STYLES.get(event["level"], "")
        parts.append(Text(escape_controls(_write_event(event)), style=style))
    return Group(*parts)


def draw_curve(metrics: list[dict[str, float]], width: int) -> str:
    """Draw the loss of every step, and of every evaluation, as lines of text.

    Return an empty string if no loss is finite or the terminal is too narrow.
    """
    curves = [
        (
            name,
            [
                (line["step"], line[key])
                for line in metrics
                if math.isfinite(line.get(key, math.nan))
            ],
        )
        for name, key in (("loss", "loss"), ("validation", "eval_loss"))
    ]
    drawn = [(name, points) for name, points in curves if points]
    if not drawn or width - _MARGIN < _MIN_CURVE_WIDTH:
        return ""
    import uniplot  # loads NumPy, which no other command needs

    return str(
        uniplot.plot_to_string(
            xs=[[step for step, _ in points] for _, points in drawn],
            ys=[[loss for _, loss in points] for _, points in drawn],
            lines=True,
            color=False,
            width=min(_MAX_CURVE_WIDTH, width - _MARGIN),
            height=_CURVE_HEIGHT,
            legend_labels=[name for name, _ in drawn] if len(drawn) > 1 else None,
            title="loss by step",
        )
    )


def _draw_bar(last: dict[str, float]) -> Progress:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    minutes, seconds = divmod(int(last["remaining_s"]), 60)
    bar.add_task(
        f"loss {last['loss']:.4f}",
        total=last["num_steps"],
        completed=int(last["step"]),
        speed=f"{last['tokens_per_s']:,.0f} tokens/s, {minutes}:{seconds:02} left",
    )
    return bar


def _write_event(event: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event["created_at"]))
    return f"{clock} {_MARKS.get(event['level'], ' ')} {event['message']}"
