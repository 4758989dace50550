"""Runs as HTML: the list of all, and the status and progress of one."""

import time
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from apps.client.resources import Event, Job
from apps.ui import markup
from apps.ui.runs.merging import Merge

TRIAL_LINKS = {
    "causal_lm": ("chat", "chat-with-it", "Chat with it"),
    "sequence_classification": ("classify", "classify-with-it", "Classify with it"),
    "image_classification": ("classify", "classify-with-it", "Classify with it"),
}
"""By task: the page where its models are tried, and the id and the text of the link to it."""


def render_run_list(jobs: Sequence[Job], selected: str) -> str:
    """Render all runs as links that select them."""
    if not jobs:
        return '<p class="ts-empty">No runs yet. <a href="./">Start a fine-tune</a>.</p>'
    items = "".join(_render_run_item(job, job.id == selected) for job in jobs)
    return f'<nav class="ts-runs" aria-label="Runs">{items}</nav>'


def _render_run_item(job: Job, is_selected: bool) -> str:
    current = " aria-current=true" if is_selected else ""
    return (
        f'<a class="ts-run" href="./runs?run={quote(job.id)}" data-run="{escape(job.id)}"{current}>'
        f'<span class="ts-run-name">{escape(name_job(job))}</span>{markup.render_badge(job.status)}'
        f'<span class="ts-muted">{escape(job.model)} · {escape(name_data(job))}</span>'
        f'<span class="ts-muted ts-right">{markup.format_moment(job.created_at)}'
        f"{_describe_duration(job)}</span></a>"
    )


def render_run(job: Job, stage: str, merge: Merge | None = None) -> str:
    """Render the selected run: name, status, model, data, progress and results."""
    error = markup.render_notice(job.error.message, "error") if job.error else ""
    return (
        f'<div class="ts-run-head" data-run="{escape(job.id)}"><h2>{escape(name_job(job))}</h2>'
        f"{markup.render_badge(job.status, 'run-status')}</div>"
        f'<p class="ts-muted">{escape(job.model)} on {escape(name_data(job))} · '
        f"started {markup.format_moment(job.created_at)}</p>"
        f"{error}{_render_progress(job, stage)}{_render_result_link(job)}"
        f"{_render_merged_link(merge)}"
    )


def _render_progress(job: Job, stage: str) -> str:
    progress = job.progress
    if progress is None or not progress.step:
        return f'<p id="run-stage" class="ts-stage">{escape(stage)}</p>'
    step = progress.step
    figures = [("Step", f"{step:,} of {progress.num_steps:,}" if progress.num_steps else str(step))]
    if progress.loss is not None:
        figures.append(("Loss", f"{progress.loss:.3f}"))
    if progress.tokens_per_s is not None:
        figures.append(("Tokens/s", f"{progress.tokens_per_s:,.0f}"))
    if job.is_active and progress.remaining_s is not None:
        figures.append(("Time left", markup.format_duration(progress.remaining_s)))
    has_ended = not job.is_active and not job.is_paused
    if has_ended:
        figures.append(("Duration", markup.format_duration(measure_duration(job))))
    stage_line = "" if has_ended else f'<p id="run-stage" class="ts-stage">{escape(stage)}</p>'
    if not progress.num_steps:  # a loop of the operator's need not report it
        return f"{markup.render_figures(figures)}{stage_line}"
    share = min(1.0, step / progress.num_steps)
    return (
        f'<progress id="run-progress" class="ts-progress ts-{escape(job.status)}" max="1" '
        f'value="{share:.4f}">{share:.0%}</progress>{markup.render_figures(figures)}{stage_line}'
    )


def _render_result_link(job: Job) -> str:
    """Render the link to the page that tries the model of a job; empty without a model."""
    if job.status != "succeeded" or not job.fine_tuned_model:
        return ""
    page, elem_id, label = TRIAL_LINKS.get(str(job.training.get("task")), TRIAL_LINKS["causal_lm"])
    return (
        f'<p class="ts-result"><a id="{elem_id}" class="ts-button" '
        f'href="./{page}?model={quote(job.fine_tuned_model)}">{label}</a>'
        f"{_render_compare_link(job, job.fine_tuned_model) if page == 'chat' else ''}"
        f"<code>{escape(job.fine_tuned_model)}</code></p>"
    )


def _render_compare_link(job: Job, tuned: str) -> str:
    """Render the link that compares the model of a job with the one that it was tuned from."""
    models = f"{quote(job.model, safe='')},{quote(tuned, safe='')}"
    label = f"Compare with {escape(job.model)}"
    return f'<a id="compare-with-base" href="./compare?models={models}">{label}</a>'


def _render_merged_link(merge: Merge | None) -> str:
    """Render the link to the chat with a merged model; empty if there is none."""
    if merge is None or not merge.exists:
        return ""
    return (
        f'<p class="ts-result"><a id="chat-with-merged" class="ts-button" '
        f'href="./chat?model={quote(merge.model_id)}">Chat with the merged model</a>'
        f"<code>{escape(merge.model_id)}</code></p>"
    )


def render_events(events: Sequence[Event]) -> str:
    """Render the events, newest first, without the metrics of the steps."""
    lines = "".join(
        f'<li class="ts-{escape(event.level)}"><time>{markup.format_clock(event.created_at)}</time>'
        f"<span>{escape(event.message)}</span></li>"
        for event in events
        if event.type != "metrics"
    )
    return f'<ol class="ts-events">{lines}</ol>' if lines else '<p class="ts-empty">None yet.</p>'


def name_job(job: Job) -> str:
    """Return a run's display name: its suffix, else its new model, else a text with its base."""
    return job.user_provided_suffix or job.fine_tuned_model or f"Fine-tune of {job.model}"


def name_data(job: Job) -> str:
    """Return the display name of a run's data: the name of the file, else its id."""
    return job.training_filename or job.training_file


def measure_duration(job: Job) -> float:
    """Return the seconds from a run's start to its end or to now; 0 if queued or paused.

    A run that ended before it started is measured from its creation.
    """
    if job.is_paused:
        return 0.0
    start = job.started_at or (None if job.is_active else job.created_at)
    return 0.0 if start is None else max(0.0, (job.finished_at or time.time()) - start)


def _describe_duration(job: Job) -> str:
    duration = measure_duration(job)
    return f" · {markup.format_duration(duration)}" if duration >= 1 else ""
