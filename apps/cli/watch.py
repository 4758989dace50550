"""Live view of a job in a terminal: a progress bar, the loss curve and the last events."""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from apps.cli.connection import run_with_api
from apps.cli.output import console, escape_controls, notes, print_json, print_message
from apps.client.client import ApiClient
from apps.client.resources import Event, Job, Metrics

_POLL_S = 1.0
_NUM_EVENTS = 6
_CURVE_HEIGHT, _MIN_CURVE_WIDTH, _MAX_CURVE_WIDTH, _MARGIN = 10, 20, 100, 16
_MARKS = {"info": "·", "warn": "!", "error": "✗"}
_STYLES = {"warn": "yellow", "error": "red"}
_INTERRUPTED = 130  # the shells' exit status for Ctrl-C


def watch_job(url: str, job_id: str, *, as_json: bool) -> NoReturn:
    """Follow a job until it ends, and exit with 0 if it succeeded, with 130 on Ctrl-C, else with 1.

    On a terminal the job is drawn; elsewhere its events are streamed as lines. With `as_json` they
    are always streamed, as JSON lines.
    """

    async def watch(api: ApiClient) -> Job:
        if as_json or not console.is_terminal:
            await _print_events(api, job_id, as_json=as_json)
        else:
            await _draw(api, job_id)
        return await api.retry_when_available(lambda: api.jobs.get(job_id))

    try:
        job = run_with_api(url, watch)
    except KeyboardInterrupt:
        notes.print(f"stopped watching; {job_id} continues")
        raise typer.Exit(_INTERRUPTED) from None
    if job.status == "succeeded" and not as_json:
        print_message(_describe_result(job))
    raise typer.Exit(0 if job.status == "succeeded" else 1)


def _describe_result(job: Job) -> str:
    """Say how to try the model of a job that has succeeded."""
    model = job.fine_tuned_model
    if model is None:  # of a loop of the operator's
        return f"{job.id} has succeeded; it has left no model"
    is_classifier = str(job.training.get("task", "")).endswith("_classification")
    command = f"classify --model {model}" if is_classifier else "chat"  # with `latest`
    return f"{model} is ready; try it with: tuneserve {command}"


async def _print_events(api: ApiClient, job_id: str, *, as_json: bool) -> None:
    async with aclosing(api.job_outputs.follow_events(job_id)) as events:
        async for event in events:
            if as_json:
                print_json(event.raw)
            else:
                print_message(_write_event(event))


async def _draw(api: ApiClient, job_id: str) -> None:
    metrics: list[Metrics] = []
    outputs = api.job_outputs

    async def read() -> tuple[Job, list[Metrics], list[Event]]:
        job = await api.retry_when_available(lambda: api.jobs.get(job_id))
        updated = await api.retry_when_available(lambda: outputs.update_metrics(job_id, metrics))
        listed = await api.retry_when_available(lambda: outputs.list_events(job_id, _NUM_EVENTS))
        return job, updated, listed

    with Live(console=console, auto_refresh=False) as live:
        while True:
            job, metrics, events = await read()
            drawn = draw_job(job, metrics, events[::-1], console.width)
            live.update(drawn, refresh=True)
            if job.is_final:
                return
            await asyncio.sleep(_POLL_S)


def draw_job(
    job: Job, metrics: Sequence[Metrics], events: Sequence[Event], width: int
) -> RenderableType:
    """Draw a job: its status, progress, loss curve and last events."""
    parts: list[RenderableType] = [Text(f"{job.id}: {job.status}", style="bold")]
    if job.waiting_for:
        parts.append(Text(escape_controls(job.waiting_for)))
    if metrics:
        parts += [_draw_bar(metrics[-1]), Text(draw_curve(metrics, width))]
    for event in events:
        style = _STYLES.get(event.level, "")
        parts.append(Text(escape_controls(_write_event(event)), style=style))
    return Group(*parts)


def draw_curve(metrics: Sequence[Metrics], width: int) -> str:
    """Draw the loss of every step, and of every evaluation, as lines of text.

    Return an empty string if no loss is finite or the terminal is too narrow.
    """
    curves = [
        ("training loss", [(line.step, line.loss) for line in metrics]),
        ("validation loss", [(line.step, line.eval_loss) for line in metrics]),
    ]
    finite = [
        (name, [(step, loss) for step, loss in points if loss is not None and math.isfinite(loss)])
        for name, points in curves
    ]
    drawn = [(name, points) for name, points in finite if points]
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


def _draw_bar(last: Metrics) -> Progress:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    minutes, seconds = divmod(int(last.remaining_s), 60)
    speed = f"{last.tokens_per_s:,.0f} tokens/s, " if last.tokens_per_s else ""
    bar.add_task(
        "" if last.loss is None else f"training loss {last.loss:.4f}",
        total=last.num_steps or None,  # a loop of the operator's may not report it
        completed=last.step,
        speed=f"{speed}{minutes}:{seconds:02} left" if last.num_steps else "",
    )
    return bar


def _write_event(event: Event) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.created_at))
    return f"{clock} {_MARKS.get(event.level, ' ')} {event.message}"
