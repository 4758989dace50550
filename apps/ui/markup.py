"""Rendering of data as HTML; all external text is escaped here."""

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from apps.client.resources import Event, Job, Preview, Row, Token
from apps.ui.merging import Merge

STATUS_WORDS = {
    "validating_files": "Checking data",
    "queued": "Waiting",
    "running": "Running",
    "paused": "Paused",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
PAGES = (("", "Fine-tune"), ("runs", "Runs"), ("chat", "Chat"), ("classify", "Classify"))
TRIAL_LINKS = {
    "causal_lm": ("chat", "chat-with-it", "Chat with it"),
    "sequence_classification": ("classify", "classify-with-it", "Classify with it"),
    "image_classification": ("classify", "classify-with-it", "Classify with it"),
}
"""By task: the page where its models are tried, and the id and the text of the link to it."""
VERDICTS = {None: "", True: ", preferred", False: ", not preferred"}
"""What follows the number of a row: whether it is the better answer of a pair."""
MAX_SHOWN_TOKENS = 160
MAX_SHOWN_KEYS = 20
UNKNOWN = "–"


def render_header(current: str) -> str:
    """Render the header of each page: name, links to the pages, link to the API description."""
    links = "".join(
        f'<a href="./{path}"{" aria-current=page" if path == current else ""}>{label}</a>'
        for path, label in PAGES
    )
    return (
        '<header class="ts-header"><a class="ts-brand" href="./">Tuneserve</a>'
        f'<nav aria-label="Pages">{links}</nav>'
        '<a class="ts-api" href="/openapi.json" target="_blank" rel="noopener">HTTP API</a>'
        "</header>"
    )


def render_notice(message: str, kind: str = "info") -> str:
    """Render a box with a message, or nothing without one; `kind` is info or error."""
    if not message:
        return ""
    role = "alert" if kind == "error" else "status"
    return f'<div class="ts-notice ts-{escape(kind)}" role="{role}">{escape(message)}</div>'


def render_badge(status: str, elem_id: str | None = None) -> str:
    """Render a run's status as a coloured word."""
    identity = f' id="{elem_id}"' if elem_id else ""
    word = STATUS_WORDS.get(status, status)
    return f'<span{identity} class="ts-badge ts-{escape(status)}">{escape(word)}</span>'


def render_preview(preview: Preview) -> str:
    """Render the counts of a file and its first rows as tokens, with the learned ones marked.

    A large file is counted only when the job is created. Rows for a classifier have labels.
    """
    if any(row.texts for row in preview.rows):
        return _render_labelled(preview)
    figures = [
        ("Rows", _show_count(preview.num_rows)),
        ("Tokens", _show_count(preview.num_tokens)),
        ("Learned", _show_share(preview.num_learned_tokens, preview.num_tokens)),
        ("Truncated", _show_count(preview.num_truncated_rows)),
        ("Longest allowed", f"{preview.max_length:,}"),
    ]
    rows = "".join(_render_row(row) for row in preview.rows)
    explanation = ""
    if any(row.is_part for row in preview.rows):
        explanation = (
            " The model's chat template rewrites earlier turns, so each answer of a chat is "
            "learned after the prompt that the served model gets for it."
        )
    return (
        f"{render_figures(figures)}{_render_ignored(preview.ignored_keys)}"
        '<p class="ts-legend">The first rows as the model sees them. '
        '<mark class="ts-learned">Marked</mark> tokens are learned; the rest is context.'
        f"{explanation}</p>"
        f'<div class="ts-rows">{rows}</div>'
    )


def _render_labelled(preview: Preview) -> str:
    figures = [("Rows", _show_count(preview.num_rows)), ("Columns", preview.format)]
    if preview.label_counts:
        figures.append(("Labels", f"{len(preview.label_counts):,}"))
    rows = "".join(
        f'<div class="ts-row"><span class="ts-line">Row {row.line}</span>'
        f'<div class="ts-tokens">{escape(" / ".join(row.texts))} '
        f'<mark class="ts-learned">{escape(", ".join(row.labels))}</mark></div></div>'
        for row in preview.rows
    )
    return (
        f"{render_figures(figures)}{_render_ignored(preview.ignored_keys)}"
        '<p class="ts-legend">The first rows, with their labels '
        '<mark class="ts-learned">marked</mark>.</p>'
        f'<div class="ts-rows">{rows}</div>'
    )


def _render_ignored(counts: Mapping[str, int]) -> str:
    """Render a notice that names the unused keys of rows; empty if there are none."""
    if not counts:
        return ""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{name} ({count:,})" for name, count in ordered[:MAX_SHOWN_KEYS])
    more = len(ordered) - MAX_SHOWN_KEYS
    rest = f" and {more} more" if more > 0 else ""
    return render_notice(f"Ignored keys, with the number of rows that have them: {names}{rest}.")


def _show_count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def _show_share(part: int | None, whole: int | None) -> str:
    return UNKNOWN if part is None or whole is None else f"{part / max(1, whole):.0%}"


def render_figures(figures: Iterable[tuple[str, str]]) -> str:
    """Render a row of labelled figures."""
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in figures
    )
    return f'<dl class="ts-figures">{cells}</dl>'


def _render_row(row: Row) -> str:
    name = f"Row {row.line}{VERDICTS[row.is_preferred]}"
    tokens = "".join(_render_token(token) for token in row.tokens[:MAX_SHOWN_TOKENS])
    hidden = len(row.tokens) - MAX_SHOWN_TOKENS
    rest = f'<span class="ts-muted"> … {hidden:,} more tokens</span>' if hidden > 0 else ""
    return (
        f'<div class="ts-row"><span class="ts-line">{name}</span>'
        f'<div class="ts-tokens">{tokens}{rest}</div></div>'
    )


def _render_token(token: Token) -> str:
    """Render one token; a line end is shown as a symbol and kept, to preserve the row's layout."""
    tag, kind = ("mark", "ts-learned") if token.learned else ("span", "ts-context")
    if not token.learned and token.text.startswith("<|"):
        kind += " ts-special"
    text = escape(token.text).replace("\n", "<i>↵</i>\n")
    return f'<{tag} class="ts-token {kind}">{text}</{tag}>'


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
        f'<span class="ts-run-name">{escape(name_job(job))}</span>{render_badge(job.status)}'
        f'<span class="ts-muted">{escape(job.model)} · {escape(name_data(job))}</span>'
        f'<span class="ts-muted ts-right">{format_moment(job.created_at)}'
        f"{_describe_duration(job)}</span></a>"
    )


def render_run(job: Job, stage: str, merge: Merge | None = None) -> str:
    """Render the selected run: name, status, model, data, progress and results."""
    error = render_notice(job.error.message, "error") if job.error else ""
    return (
        f'<div class="ts-run-head" data-run="{escape(job.id)}"><h2>{escape(name_job(job))}</h2>'
        f"{render_badge(job.status, 'run-status')}</div>"
        f'<p class="ts-muted">{escape(job.model)} on {escape(name_data(job))} · '
        f"started {format_moment(job.created_at)}</p>"
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
        figures.append(("Time left", format_duration(progress.remaining_s)))
    has_ended = not job.is_active and not job.is_paused
    if has_ended:
        figures.append(("Duration", format_duration(measure_duration(job))))
    stage_line = "" if has_ended else f'<p id="run-stage" class="ts-stage">{escape(stage)}</p>'
    if not progress.num_steps:  # a loop of the operator's need not report it
        return f"{render_figures(figures)}{stage_line}"
    share = min(1.0, step / progress.num_steps)
    return (
        f'<progress id="run-progress" class="ts-progress ts-{escape(job.status)}" max="1" '
        f'value="{share:.4f}">{share:.0%}</progress>{render_figures(figures)}{stage_line}'
    )


def _render_result_link(job: Job) -> str:
    """Render the link to the page that tries the model of a job; empty without a model."""
    if job.status != "succeeded" or not job.fine_tuned_model:
        return ""
    page, elem_id, label = TRIAL_LINKS.get(str(job.training.get("task")), TRIAL_LINKS["causal_lm"])
    return (
        f'<p class="ts-result"><a id="{elem_id}" class="ts-button" '
        f'href="./{page}?model={quote(job.fine_tuned_model)}">{label}</a>'
        f"<code>{escape(job.fine_tuned_model)}</code></p>"
    )


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
        f'<li class="ts-{escape(event.level)}"><time>{format_clock(event.created_at)}</time>'
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
    return f" · {format_duration(duration)}" if duration >= 1 else ""


def format_duration(seconds: float) -> str:
    """Format a duration, as in '45 s', '3 min 20 s' or '2 h 5 min'."""
    total = round(max(0.0, seconds))
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_moment(timestamp: float) -> str:
    """Format a Unix time as the server's local date and time."""
    return time.strftime("%-d %b, %H:%M", time.localtime(timestamp))


def format_clock(timestamp: float) -> str:
    """Format a Unix time as the server's local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(timestamp))
