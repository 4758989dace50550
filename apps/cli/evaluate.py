"""`tuneserve evaluate`: ask one or two models the questions of rows, and compare the answers."""

import asyncio
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.jobs import read_settings, upload_if_local
from apps.cli.output import Rows, escape_controls, fail, notes, show
from apps.client.client import ApiClient
from apps.client.evaluation_resources import EvaluatedModel, Evaluation
from apps.client.evaluations import EvaluationRequest

_POLL_S = 0.5
_INTERRUPTED = 130  # the shells' exit status for Ctrl-C


def evaluate(
    models: Annotated[list[str], typer.Argument(help="Ids or aliases of one or two models.")],
    file: Annotated[
        str | None, typer.Option(help="File of rows with answers: a local path or a file id.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Id of a job, whose validation rows are used.")
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Most rows: the first ones are used (default 100).")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of one answer (default 256).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the training spec that affects how rows are read; repeatable.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Ask models the questions of rows, and show how well their answers match.

    Waits until the evaluation has ended. Ctrl-C stops waiting, not the evaluation.
    """
    if (file is None) == (job is None):
        fail("expected either --file or --job")
    training = read_settings(settings)
    begun: list[str] = []

    async def work(api: ApiClient) -> Evaluation:
        request: EvaluationRequest = {
            "models": models,
            "file": None if file is None else await upload_if_local(api, file),
            "job": job,
            "max_rows": max_rows,
            "max_tokens": max_tokens,
            "training": training or None,
        }
        evaluation = await api.evaluations.create(request)
        begun.append(evaluation.id)
        return await _wait(api, evaluation)

    try:
        ended = run_with_api(url, work)
    except KeyboardInterrupt:
        if begun:
            notes.print(f"stopped waiting; {escape_controls(begun[0])} continues")
        raise typer.Exit(_INTERRUPTED) from None
    show(ended.raw, as_json, lambda: _render(ended))
    if ended.error is not None:
        fail(ended.error.message)
    raise typer.Exit(0 if ended.status == "succeeded" else 1)


async def _wait(api: ApiClient, evaluation: Evaluation) -> Evaluation:
    """Wait for the end of an evaluation; show its progress on a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    ) as progress:
        bar = progress.add_task(evaluation.status, total=None)
        while evaluation.is_active:
            await asyncio.sleep(_POLL_S)
            evaluation_id = evaluation.id
            evaluation = await api.retry_when_available(lambda: api.evaluations.get(evaluation_id))  # noqa: B023 - called at once
            progress.update(
                bar,
                description=escape_controls(evaluation.status),
                total=evaluation.num_rows,
                completed=evaluation.num_done,
            )
    return evaluation


def _render(evaluation: Evaluation) -> Rows:
    names = ("model", "rows", "failed", "exact match", "contains", "ROUGE-L", "perplexity")
    return Rows([_describe(one) for one in evaluation.models], names)


def _describe(one: EvaluatedModel) -> tuple[str, ...]:
    shares = (one.exact_match, one.contains, one.rouge_l)
    return (
        one.model,
        str(one.num_rows),
        str(one.num_failed),
        *("" if share is None else f"{share:.1%}" for share in shares),
        "" if one.perplexity is None else f"{one.perplexity:.3f}",
    )
