"""The list of runs: one page of the newest, or of those with a status or a text."""

from html import escape
from urllib.parse import quote

from apps.client.client import ApiClient
from apps.client.resources import Job
from apps.ui import markup
from apps.ui.figures import format_metric
from apps.ui.runs.run_markup import (
    is_waiting,
    mark_name,
    measure_share,
    name_data,
    name_job,
    render_duration,
    render_early_stop,
)
from apps.ui.runs.sparklines import Sparkline, Sparklines, draw
from apps.ui.runs.view_request import ViewRequest
from apps.ui.tab_state import Content

PAGE_SIZE = 50


async def read_run_list(
    client: ApiClient, asked: ViewRequest, sparklines: Sparklines, interval_s: tuple[float, float]
) -> Content:
    """Request one page of runs; `interval_s` are those while a run is active, and otherwise.

    Raises `ApiClientError`.
    """
    page = await client.jobs.list_page(
        PAGE_SIZE, after=asked.after, status=asked.status, search=asked.search
    )
    lines = await sparklines.find(client, page.jobs)
    is_any_active = any(job.is_active for job in page.jobs)
    return Content(
        parts={
            "notice": "",
            "list-empty": "" if page.jobs else _describe_none(asked),
            **{f"runs/{job.id}": render_row(job, lines.get(job.id)) for job in page.jobs},
        },
        lists={"runs": [job.id for job in page.jobs]},
        values={
            "has_more": page.has_more,
            "interval_s": interval_s[0] if is_any_active else interval_s[1],
        },
    )


def _describe_none(asked: ViewRequest) -> str:
    if asked.status or asked.search:
        return '<p class="ts-empty">No run matches.</p>'
    if asked.after:
        return '<p class="ts-empty">No older runs.</p>'
    return '<p class="ts-empty">No runs yet. <a href="./">Start a fine-tune</a>.</p>'


def render_row(job: Job, line: Sparkline | None = None) -> str:
    """Render one run as a row of the table."""
    line = line or Sparkline()
    name, run = escape(name_job(job)), escape(job.id)
    loss = job.progress.loss if job.progress else None
    metric = "" if line.value is None else format_metric(line.value)
    if metric and line.metric == "loss":
        metric += ' <span class="ts-muted">loss</span>'
    elif metric:
        metric += (
            f' <span class="ts-muted" translate="no">{escape(line.metric.replace("_", " "))}</span>'
        )
    cells = (
        ("State", markup.render_badge(job.status)),
        ("Model", _render_name(job.model)),
        ("Data", _render_name(name_data(job))),
        ("Progress", _render_progress(job)),
        (
            "Training loss",
            draw(line.losses) + ("" if loss is None else f"<span>{format_metric(loss)}</span>"),
        ),
        ("Validation", metric),
        ("Started", _render_started(job)),
        ("Duration", render_duration(job)),
    )
    shown = "".join(
        f'<td data-label="{label}" class="ts-{label.lower().replace(" ", "-")}">{cell}</td>'
        for label, cell in cells
    )
    return (
        f'<tr data-run="{run}"><td class="ts-choice"><input type="checkbox" data-select="{run}" '
        f'aria-label="Select {name}"></td><th scope="row"><a href="./runs?run={quote(job.id)}" '
        f'data-go="run" data-run="{run}"{mark_name(job)}>{name}</a></th>{shown}</tr>'
    )


def _render_progress(job: Job) -> str:
    progress = job.progress
    reason = job.waiting_for if is_waiting(job) else None  # it may have steps nevertheless
    if reason or progress is None or not progress.step:
        return f'<span class="ts-muted">{markup.keep_english(job.waiting_for or "")}</span>'
    share = measure_share(job)
    if share is None:
        return f"step {progress.step:,}"
    stop = render_early_stop(job)
    return (
        f'<progress class="ts-progress ts-{escape(job.status)}" max="1" value="{share:.3f}" '
        f'aria-label="Progress">{share:.0%}</progress>{stop or f"<span>{share:.0%}</span>"}'
    )


def _render_name(name: str) -> str:
    """Render a name that may be cut off, with the whole name as its title."""
    return f'<span class="ts-cut" translate="no" title="{escape(name)}">{escape(name)}</span>'


def _render_started(job: Job) -> str:
    if job.started_at is not None:
        return markup.render_moment(job.started_at, "relative")
    return f"created {markup.render_moment(job.created_at, 'relative')}"
