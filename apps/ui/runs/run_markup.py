"""One run as HTML: its status, progress, buttons and events, and how long it has taken."""

import time
from collections.abc import Collection, Sequence
from html import escape
from itertools import takewhile

from apps.client.resources import Event, Job
from apps.ui import markup
from apps.ui.figures import format_metric
from apps.ui.runs.merging import Merge

CANCEL_PATIENCE_S = 20.0
WRITE_JOBS = "jobs.write"
STARTING = "Starting…"
"""The stage of a running job without a later event than that it was queued."""


def render_run(job: Job, stage: str) -> str:
    """Render the status of a run: name, model, data, times and progress."""
    error = markup.render_notice(job.error.message, "error", of_api=True) if job.error else ""
    return (
        f'<div class="ts-run-head" data-run="{escape(job.id)}">'
        f"<h2{mark_name(job)}>{escape(name_job(job))}</h2>"
        f"{markup.render_badge(job.status, 'run-status')}</div>"
        f'<p class="ts-muted">{markup.keep(job.model)} on {markup.keep(name_data(job))} · '
        f"{_render_begin(job)}{_render_extended(job)}</p>{error}{_render_progress(job, stage)}"
    )


def _render_begin(job: Job) -> str:
    """Render when a run began; one that has not is created, or waits, since a time."""
    if job.started_at is not None:
        return f"started {markup.render_moment(job.started_at)}"
    word = "waiting since" if job.status == "queued" else "created"
    return f"{word} {markup.render_moment(job.created_at)}"


def _render_extended(job: Job) -> str:
    """Render the link to the run that this one extends; empty if it extends none."""
    if (extended := job.extended_from) is None:
        return ""
    attributes = f' id="extended-run" data-go="run" data-run="{escape(extended)}"'
    return f" · extends {markup.link_run(extended, attributes)}"


def _render_progress(job: Job, stage: str) -> str:
    figures, progress = [], job.progress
    if progress is not None and progress.step:
        step = progress.step
        has_all = has_stopped_early(job) or not progress.num_steps
        figures.append(("Step", f"{step:,}" if has_all else f"{step:,} of {progress.num_steps:,}"))
        if progress.loss is not None:
            figures.append(("Training loss", format_metric(progress.loss)))
        if progress.tokens_per_s is not None and not has_yet_to_start(job):
            figures.append(("Tokens/s", f"{progress.tokens_per_s:,.0f}"))
        if job.is_active and progress.remaining_s is not None:
            figures.append(("Time left", markup.format_duration(progress.remaining_s)))
    cells = markup.render_figures(figures).removesuffix("</dl>") or '<dl class="ts-figures">'
    if duration := render_duration(job):
        cells += f"<div><dt>Duration</dt><dd>{duration}</dd></div>"
    shown = escape(stage) if _is_own_stage(job, stage) else markup.keep_english(stage)
    stage_line = "" if job.is_final else f'<p id="run-stage" class="ts-stage">{shown}</p>'
    return f"{_render_bar(job)}{cells}</dl>{stage_line}"


def _render_bar(job: Job) -> str:
    """Render the progress bar; empty if the number of steps is unknown, as of an own loop."""
    share = measure_share(job)
    if share is None:
        return ""
    return (
        f'<progress id="run-progress" class="ts-progress ts-{escape(job.status)}" max="1" '
        f'value="{share:.4f}" aria-label="Progress">{share:.0%}</progress>{render_early_stop(job)}'
    )


def measure_share(job: Job) -> float | None:
    """Return the share of the steps that are done; None if it is unknown.

    Of a run that stopped early, all are: the others are not needed.
    """
    progress = job.progress
    if progress is None or not progress.step or not progress.num_steps:
        return None
    return 1.0 if has_stopped_early(job) else min(1.0, progress.step / progress.num_steps)


def has_stopped_early(job: Job) -> bool:
    """Return whether a run succeeded before its last step."""
    progress = job.progress
    if job.status != "succeeded" or progress is None or not progress.step:
        return False
    return progress.num_steps is not None and progress.step < progress.num_steps


def render_early_stop(job: Job) -> str:
    """Render where a run stopped early; empty if it did not."""
    if job.progress is None or not has_stopped_early(job):
        return ""
    step, num_steps = job.progress.step, job.progress.num_steps
    return f'<span class="ts-early">stopped early at step {step:,} of {num_steps:,}</span>'


def is_waiting(job: Job) -> bool:
    """Return whether a run waits for its start, or to be resumed."""
    return job.status in ("validating_files", "queued")


def has_yet_to_start(job: Job) -> bool:
    """Return whether a run waits for its first start.

    An extension has the figures of the run that it extends. A run that waits to be resumed has its
    own.
    """
    return job.started_at is None and is_waiting(job)


def render_duration(job: Job) -> str:
    """Render the time from a run's start to its end, or to now; empty before its start.

    Pauses count, so that it never decreases. The script of the page counts up that of a run which
    has not ended.
    """
    if job.started_at is None:
        return ""
    if job.finished_at is None:
        return f'<span data-since="{job.started_at}"></span>'
    return markup.format_duration(max(0, job.finished_at - job.started_at))


def render_buttons(
    job: Job,
    events: Sequence[Event],
    permissions: Collection[str],
    merge: Merge | None,
    *,
    has_checkpoints: bool = False,
) -> str:
    """Render the buttons that change a run, as far as its status and the visitor's key allow."""
    again = (
        f'<a id="again-button" class="ts-action" href="./?from={escape(job.id)}">'
        "Start again with changes</a>"
    )
    if WRITE_JOBS not in permissions:
        return ""
    is_cancelling = job.is_active and has_cancel_request(events)
    is_pausing = job.status == "running" and is_about_to_pause(events)
    shown = []
    if job.is_active:
        shown.append(_render_button("pause", "Pause", "Pausing…", is_pausing or is_cancelling))
    if job.resumable and not job.is_active:
        shown.append(_render_button("resume", "Resume", "Resuming…"))
    if job.is_active or job.is_paused:
        shown.append(_render_button("cancel", "Cancel", "Cancelling…", is_cancelling))
    if merge is not None and not merge.exists:
        label = "Merge into a complete model"
        shown.append(_render_button("merge", label, "Merging…", merge.is_running))
    if job.status == "succeeded" and has_checkpoints:
        shown.append(_render_extend_button(job))
    if job.is_final:
        shown += [again, _render_button("delete", "Delete", "Deleting…")]
    return "".join(shown)


def _render_extend_button(job: Job) -> str:
    """Render the button that asks for the new length, with the settings that limit the run."""
    max_steps, epochs = job.training.get("max_steps"), job.training.get("epochs")
    is_at_limit = job.progress is not None and job.progress.step == max_steps
    before = max_steps if is_at_limit else epochs
    if not isinstance(before, int):  # the settings cannot be read
        return ""
    limit = "max_steps" if is_at_limit else "epochs"
    settings = "".join(
        f' data-{name}="{value}"'
        for name, value in (("epochs", epochs), ("steps", max_steps))
        if isinstance(value, int)
    )
    patience = job.training.get("early_stopping_patience") if has_stopped_early(job) else None
    if isinstance(patience, int):
        settings += f' data-patience="{patience}"'
    more = f' data-limit="{limit}"{settings}'
    return _render_button("extend", "Extend", "Extending…", more=more)


def _render_button(
    action: str, label: str, busy: str, is_busy: bool = False, more: str = ""
) -> str:
    """Render a button, with more attributes; while the change is made, it shows `busy`."""
    state = " disabled" if is_busy else ""
    text = busy if is_busy else label
    return (
        f'<button type="button" id="{action}-button" class="ts-action" data-action="{action}" '
        f'data-busy="{escape(busy)}"{more}{state}>{escape(text)}</button>'
    )


def render_event(event: Event) -> str:
    """Render one event."""
    return (
        f'<li class="ts-{escape(event.level)}">{markup.render_moment(event.created_at, "clock")}'
        f"{markup.keep_english(event.message)}</li>"
    )


def name_job(job: Job) -> str:
    """Return a run's display name: its suffix, else its new model, else a text with its base."""
    return job.user_provided_suffix or job.fine_tuned_model or f"Fine-tune of {job.model}"


def mark_name(job: Job) -> str:
    """Return the attribute of an element with the display name of a run: names stay as they are."""
    return ' translate="no"' if job.user_provided_suffix or job.fine_tuned_model else ""


def name_data(job: Job) -> str:
    """Return the display name of a run's data: the name of the file, else its id."""
    return job.training_filename or job.training_file


def describe_stage(job: Job, events: Sequence[Event]) -> str:
    """Describe the current stage of a run in a short text: what it does, or what it waits for."""
    if job.waiting_for:
        return f"Waiting: {job.waiting_for}"
    if job.is_paused:
        return "Paused; it resumes from its last checkpoint"
    if job.progress is not None and job.progress.stage:
        return job.progress.stage
    newest = next((event for event in events if event.type != "metrics"), None)
    if newest is None:
        return markup.STATUS_WORDS.get(job.status, job.status)
    is_starting = job.status == "running" and newest.code == "queued" and newest.level == "info"
    return STARTING if is_starting else newest.message


def _is_own_stage(job: Job, stage: str) -> bool:
    """Return whether a stage is in the words of this page, not in those of the API."""
    is_ours = stage.startswith("Waiting: ") or stage in (STARTING, *markup.STATUS_WORDS.values())
    return is_ours or job.is_paused


def has_cancel_request(events: Sequence[Event]) -> bool:
    """Return whether any client requested a cancel recently and the run was not queued since."""
    earliest = time.time() - CANCEL_PATIENCE_S
    since = takewhile(lambda event: event.code != "queued", events)
    return any(event.code == "cancel_requested" and event.created_at >= earliest for event in since)


def is_about_to_pause(events: Sequence[Event]) -> bool:
    """Return whether any client requested a pause and only steps were reported since."""
    codes = (event.code for event in events if event.type != "metrics")
    return next(codes, None) in ("pause_requested", "pausing")
