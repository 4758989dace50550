"""One evaluation: progress, metrics of its models, and its rows page by page."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from html import escape
from urllib.parse import quote, urlencode

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.client.evaluation_resources import Evaluation, EvaluationRows
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.evaluate.evaluate_request import EvaluateRequest
from apps.ui.evaluate.evaluated_rows import describe_no_rows, render_rows
from apps.ui.evaluate.evaluation_list import measure_done, name_model
from apps.ui.evaluate.metric_cards import render_cards
from apps.ui.runs.run_markup import WRITE_JOBS, name_job
from apps.ui.tab_state import Content, TabState

PAGE_SIZE = 10
_FORBIDDEN = 403


async def read_evaluation(
    client: ApiClient, asked: EvaluateRequest, state: TabState, interval_s: tuple[float, float]
) -> Content:
    """Request one evaluation, and a page of its rows.

    `interval_s` are those while it is active, and otherwise. Raises `ApiClientError`.
    """
    evaluation, access, (page, refusal) = await asyncio.gather(
        client.evaluations.get(asked.evaluation), client.access.get(), _read_rows(client, asked)
    )
    is_empty = not page.rows and not refusal
    empty = describe_no_rows(asked.filter, is_active=evaluation.is_active) if is_empty else refusal
    parts = {
        "notice": "",
        "evaluation": render_head(evaluation),
        "evaluation-progress": render_progress(evaluation),
        "evaluation-buttons": render_evaluation_buttons(evaluation, access.permissions),
        "evaluation-cards": render_cards(evaluation.models),
        "rows-empty": f'<p class="ts-empty">{escape(empty)}</p>' if empty else "",
        "rows-download": _render_download(asked) if evaluation.num_done and not refusal else "",
        **await asyncio.to_thread(render_rows, page.rows),  # long answers take a while
    }
    if not state.has_part("evaluation-source"):  # it never changes
        parts["evaluation-source"] = await _render_source(client, evaluation)
    return Content(
        parts=parts,
        lists={"rows": [row.id for row in page.rows]},
        values={
            "title": name_evaluation(evaluation),
            "interval_s": interval_s[0] if evaluation.is_active else interval_s[1],
            "has_more": page.has_more,
        },
    )


async def _read_rows(client: ApiClient, asked: EvaluateRequest) -> tuple[EvaluationRows, str]:
    """Return a page of rows, or none and why: a key may see metrics but not rows."""
    list_rows = client.evaluations.list_rows
    try:
        after = asked.after or None
        return await list_rows(asked.evaluation, PAGE_SIZE, after, asked.filter), ""
    except RequestRefusedError as exc:
        if exc.status != _FORBIDDEN:
            raise
        return EvaluationRows([], False), describe_error(exc)


def name_evaluation(evaluation: Evaluation) -> str:
    """Return the name of an evaluation: those of its models."""
    return " and ".join(map(name_model, evaluation.models))


def render_head(evaluation: Evaluation) -> str:
    """Render the name and the status of an evaluation, and why it failed."""
    error = evaluation.error
    notice = markup.render_notice(error.message, "error", of_api=True) if error is not None else ""
    return (
        f'<div class="ts-run-head" data-evaluation="{escape(evaluation.id)}">'
        f"{markup.keep(name_evaluation(evaluation), 'h2')}"
        f"{markup.render_badge(evaluation.status, 'evaluation-status')}</div>{notice}"
    )


def render_progress(evaluation: Evaluation) -> str:
    """Render how many rows are done, as a bar and as figures."""
    share = measure_done(evaluation)
    bar = ""
    if share is not None:
        bar = (
            f'<progress id="evaluation-progress" class="ts-progress '
            f'ts-{escape(evaluation.status)}" max="1" value="{share:.4f}" '
            f'aria-label="Rows that are done">{share:.0%}</progress>'
        )
    total = "" if evaluation.num_rows is None else f" of {evaluation.num_rows:,}"
    figures = [
        ("Rows", f"{evaluation.num_done:,}{total}"),
        ("Maximum tokens of an answer", f"{evaluation.max_tokens:,}"),
    ]
    cells = markup.render_figures(figures).removesuffix("</dl>")
    if evaluation.status != "queued":
        cells += f"<div><dt>Duration</dt><dd>{_render_duration(evaluation)}</dd></div>"
    return f"{bar}{cells}</dl>"


def _render_duration(evaluation: Evaluation) -> str:
    """Render how long an evaluation took; the script counts up the time of one that is active."""
    if evaluation.finished_at is None:
        return f'<span data-since="{evaluation.created_at}"></span>'
    return markup.format_duration(evaluation.finished_at - evaluation.created_at)


def render_evaluation_buttons(evaluation: Evaluation, permissions: Collection[str]) -> str:
    """Render the buttons that change an evaluation, and the link to repeat it, if the key may."""
    if WRITE_JOBS not in permissions:
        return ""
    if evaluation.is_active:
        return _render_button("cancel", "Cancel", "Cancelling…")
    link = f"./evaluate?{describe_again(evaluation)}"
    return (
        f'<a id="evaluate-again" class="ts-action" href="{escape(link)}">Evaluate again</a>'
        f"{_render_button('delete', 'Delete', 'Deleting…')}"
    )


def _render_button(action: str, label: str, busy: str) -> str:
    return (
        f'<button type="button" id="{action}-evaluation" class="ts-action" '
        f'data-action="{action}" data-busy="{busy}">{label}</button>'
    )


def describe_again(evaluation: Evaluation) -> str:
    """Return the query that fills in the form with what an evaluation had."""
    rows = f"job:{evaluation.job}" if evaluation.job else f"file:{evaluation.file}"
    query = {
        "models": ",".join(model.requested or model.model for model in evaluation.models),
        "rows": rows,
        "max_rows": str(evaluation.max_rows),
        "max_tokens": str(evaluation.max_tokens),
    }
    return urlencode(query, safe=",:", quote_via=quote)


def _render_download(asked: EvaluateRequest) -> str:
    link = f"./evaluate/{quote(asked.evaluation, safe='')}/rows?filter={asked.filter}"
    return f'<a id="download-rows" class="ts-action" href="{link}" download>Download as CSV</a>'


async def _render_source(client: ApiClient, evaluation: Evaluation) -> str:
    """Render where the rows are from; their id if the key may not see more."""
    created = f"created {markup.render_moment(evaluation.created_at)}"
    if evaluation.job:
        name = evaluation.job
        with suppress(RequestRefusedError):
            name = name_job(await client.jobs.get(evaluation.job))
        link = f"./runs?run={quote(evaluation.job, safe='')}"
        return f'Validation rows of <a href="{link}" translate="no">{escape(name)}</a> · {created}'
    name = evaluation.file or ""
    with suppress(RequestRefusedError):
        name = (await client.files.get(name)).filename or name
    return f"Rows of {markup.keep(name)} · {created}"
