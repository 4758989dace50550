"""Parts of all pages as HTML; external text is escaped where it becomes HTML."""

import time
from collections.abc import Iterable
from html import escape

STATUS_WORDS = {
    "validating_files": "Checking data",
    "queued": "Waiting",
    "running": "Running",
    "paused": "Paused",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
PAGES = (
    ("", "Fine-tune"),
    ("runs", "Runs"),
    ("chat", "Chat"),
    ("classify", "Classify"),
    ("models", "Models"),
    ("cluster", "Cluster"),
)


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


def render_figures(figures: Iterable[tuple[str, str]]) -> str:
    """Render a row of labelled figures."""
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in figures
    )
    return f'<dl class="ts-figures">{cells}</dl>'


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
