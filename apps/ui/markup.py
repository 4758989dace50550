"""Parts of all pages as HTML; external text is escaped where it becomes HTML."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from html import escape
from typing import Literal
from urllib.parse import quote

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
PAGES = (
    ("", "Fine-tune"),
    ("runs", "Runs"),
    ("chat", "Chat"),
    ("evaluate", "Evaluate"),
    ("classify", "Classify"),
    ("models", "Models"),
    ("cluster", "Cluster"),
)
TITLES = {**dict(PAGES), "compare": "Compare models"}
"""Titles of all pages; Compare is linked from Chat only."""
API_PAGE = "api"
NAMES = "ts-names"
"""The class of menus whose entries are names, which `translate.js` leaves as they are."""
_SHORT_ID = 12
"""Most characters after the kind of an id that are not shortened."""
UNKNOWN = "–"
"""What is shown for a value that does not exist."""
_ICONS = {
    "": "M2 4h6m4 0h2M2 8h2m4 0h6M2 12h7m4 0h1M10 2.5v3m-4 1v3m5 1v3",
    "runs": "M2 2v12h12M4.5 10.5l3-3.5 2.5 2L14 4",
    "chat": "M2 3h12v8H8l-3.5 3v-3H2z",
    "evaluate": "M2 4l1.5 1.5L6 3M2 11l1.5 1.5L6 10M8.5 4.5H14M8.5 11.5H14",
    "classify": "M2 2h5.5L14 8.5 8.5 14 2 7.5zM5 5h.01",
    "models": "M8 1.5 13.5 4.5v7L8 14.5l-5.5-3v-7zM2.5 4.5 8 7.5l5.5-3M8 7.5v7",
    "cluster": "M2 2.5h12v4.5H2zM2 9h12v4.5H2zM5 4.7h.01M5 11.2h.01",
    API_PAGE: "M5.5 4 1.5 8l4 4m5-8 4 4-4 4",
    "system": "M8 2a6 6 0 1 0 0 12zm0 0a6 6 0 0 1 0 12",
    "light": "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1m0 12v1M1 8h1m12 0h1M3 3l.8.8m8.4 8.4.8.8M3 13"
    "l.8-.8m8.4-8.4.8-.8",
    "dark": "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
    "brand": "M2 3c3 9 6 10 12 10",
}
"""Outlines of 16 by 16, by page or theme."""
_THEMES = (("system", "Automatic theme"), ("light", "Light theme"), ("dark", "Dark theme"))
_UNITS = (
    ("year", 31_557_600),
    ("month", 2_629_800),
    ("week", 604_800),
    ("day", 86_400),
    ("h", 3600),
    ("min", 60),
)


def render_header(current: str | None, languages: Iterable[tuple[str, str, str]] = ()) -> str:
    """Render the header of each page: name, links to the pages, choice of language and theme.

    `current` is the path of the page that is marked; None marks none. `languages` are tags, names,
    and addresses of texts.
    """
    links = "".join(_render_link(path, label, current) for path, label in PAGES)
    themes = "".join(
        f'<button type="button" data-theme="{theme}" aria-label="{label}" title="{label}">'
        f"{_render_icon(theme)}</button>"
        for theme, label in _THEMES
    )
    return (
        '<header class="ts-header">'
        f'<a class="ts-brand" href="./">{_render_icon("brand")}Tuneserve</a>'
        f'<nav aria-label="Pages">{links}</nav>'
        f'<div class="ts-tools">{_render_link(API_PAGE, "HTTP API", current)}'
        f"{_render_languages(languages)}"
        f'<div class="ts-themes" role="group" aria-label="Theme">{themes}</div></div></header>'
    )


def _render_link(path: str, label: str, current: str | None) -> str:
    mark = ' aria-current="page"' if path == current else ""
    return f'<a href="./{path}"{mark}>{_render_icon(path)}<span>{label}</span></a>'


def _render_languages(languages: Iterable[tuple[str, str, str]]) -> str:
    """Render the menu of languages; `translate.js` reads the addresses of the texts from it."""
    options = "".join(
        f'<option value="{tag}" lang="{tag}" translate="no" data-texts="{address}">'
        f"{escape(name)}</option>"
        for tag, name, address in languages
    )
    return (
        '<select id="language" class="ts-language" aria-label="Language" autocomplete="off">'
        f"{options}</select>"
    )


def _render_icon(name: str) -> str:
    outline = _ICONS.get(name, "")
    return f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{outline}"/></svg>'


def keep(text: str, tag: str = "span") -> str:
    """Render a name, or another text that is not translated, as an element of its own."""
    return f'<{tag} translate="no">{escape(text)}</{tag}>'


def keep_english(text: str, tag: str = "span") -> str:
    """Render a text of the API, which is English in every language of the page."""
    return f'<{tag} lang="en" translate="no">{escape(text)}</{tag}>'


def join_models(names: Iterable[str]) -> str:
    """Return names of models as the value of `models` in addresses of Compare and Evaluate."""
    return ",".join(quote(name, safe="") for name in names)


def link_run(run_id: str, attributes: str = "") -> str:
    """Render the link to a run whose name is not known: the shortened id, with the id as title."""
    return (
        f'<a href="./runs?run={quote(run_id, safe="")}" title="{escape(run_id)}" '
        f'translate="no"{attributes}>{escape(shorten_id(run_id))}</a>'
    )


def shorten_id(identifier: str) -> str:
    """Shorten an id such as `ftjob-18ebcb7cc8efc31d11568e8e` to its kind and last characters."""
    kind, _, rest = identifier.partition("-")
    return f"{kind}-…{rest[-6:]}" if len(rest) > _SHORT_ID else identifier


def render_notice(message: str, kind: str = "info", *, of_api: bool = False) -> str:
    """Render a box with a message, or nothing without one; `kind` is info or error.

    A message `of_api` is not translated.
    """
    if not message:
        return ""
    role = "alert" if kind == "error" else "status"
    shown = keep_english(message) if of_api else escape(message)
    return f'<div class="ts-notice ts-{escape(kind)}" role="{role}">{shown}</div>'


def render_badge(status: str, elem_id: str | None = None) -> str:
    """Render a run's status as a coloured word."""
    identity = f' id="{elem_id}"' if elem_id else ""
    word = STATUS_WORDS.get(status, status)
    return f'<span{identity} class="ts-badge ts-{escape(status)}">{escape(word)}</span>'


def render_figures(figures: Iterable[tuple[str, str]], names: Collection[str] = ()) -> str:
    """Render a row of labelled figures; what the labels in `names` have is not translated."""
    cells = "".join(
        f"<div><dt>{escape(label)}</dt>"
        f"{keep(value, 'dd') if label in names else f'<dd>{escape(value)}</dd>'}</div>"
        for label, value in figures
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


def format_age(age_s: float) -> str:
    """Format how many seconds ago something was, as in '5 min ago', for texts without markup."""
    for unit, length_s in _UNITS:
        if age_s >= length_s:
            count = int(age_s / length_s)
            plural = "s" if count > 1 and unit not in ("min", "h") else ""
            return f"{count} {unit}{plural} ago"
    return "just now"
