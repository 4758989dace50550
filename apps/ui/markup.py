"""Parts of all pages as HTML; external text is escaped where it becomes HTML."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Literal

MomentKind = Literal["moment", "clock", "relative"]

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

_UNITS = (
    ("year", 31_557_600),
    ("month", 2_629_800),
    ("week", 604_800),
    ("day", 86_400),
    ("h", 3600),
    ("min", 60),
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


def render_moment(timestamp: float, kind: MomentKind = "moment") -> str:
    """Render a Unix time: UTC until `page.js` shows it in the browser's zone and locale.

    `moment` is the date, hour and minute, `clock` the time of day, `relative` as in "3 min ago".
    """
    moment = datetime.fromtimestamp(timestamp, UTC)
    shown = f"{moment:%H:%M:%S}" if kind == "clock" else f"{moment.day} {moment:%b %Y, %H:%M}"
    machine_readable = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f'<time datetime="{machine_readable}" data-moment="{kind}">{shown} UTC</time>'


def format_age(timestamp: float) -> str:
    """Format how long ago a Unix time was, as in '5 min ago', for texts without markup."""
    age_s = time.time() - timestamp
    for unit, length_s in _UNITS:
        if age_s >= length_s:
            count = int(age_s / length_s)
            plural = "s" if count > 1 and unit not in ("min", "h") else ""
            return f"{count} {unit}{plural} ago"
    return "just now"
