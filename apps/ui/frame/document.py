"""The documents of the page: head, header and main part, and Gradio's document completed by them.

Gradio's scripts insert their part seconds after the document on a slow line; the header is part
of the document itself, so that it appears at once, and so is the frame of some pages.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape

import gradio

from apps.ui import markup
from apps.ui.frame.assets import ASSETS, FRAME_STYLE, PAGE_STYLE, link_asset, link_script
from apps.ui.frame.first_views import Frame
from apps.ui.frame.languages import list_languages
from apps.ui.frame.needed_files import list_needed_files

CONTENT_MARK = "<!--first content-->"
"""What is in a document in place of its first content."""
_EARLY = ' defer fetchpriority="high"'
"""Attributes of our scripts: browsers would load those of Gradio first otherwise."""
_COMPONENT_TYPE = re.compile(r'"type": ?"([a-z]+)"')
_COMMON_TYPES = ("column",)
"""What Gradio draws on each page without naming it."""
_THEME_HASH = re.compile(r'"theme_hash": ?"(\w+)"')
_BODY = re.compile(r"<body\b[^>]*>")
_MANIFEST = re.compile(r'<link rel="manifest"[^>]*>')
_SCRIPT = re.compile(r"<script\b[^>]*>")
_SCRIPT_END = "</script>"
_SPACES_MARK = "iframeResizer.contentWindow"
"""What is only in Gradio's script for pages inside of Hugging Face Spaces."""


def render_document(title: str, current: str | None, content: str, base: str = "./") -> str:
    """Render a document without Gradio; `content` is HTML, `base` the address of the page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<base href="{escape(base)}"><meta name="viewport" content="width=device-width">'
        f"{_render_head(title)}{_link_theme()}</head><body>{_render_top(current)}"
        f'<main id="content" class="ts-document"><h1>{escape(title)}</h1>{content}</main>'
        "</body></html>"
    )


def complete_document(
    html: str, current: str, frame: Frame | None = None, scripts: Sequence[str] = ()
) -> str:
    """Return Gradio's document of a page with our head and header, and the page's frame.

    With `scripts`, which are names in `assets`, it has a place for their content (`CONTENT_MARK`).
    """
    theme_hash = next(iter(_THEME_HASH.findall(html)), "")
    title = markup.TITLES.get(current, "")
    types = {*_COMPONENT_TYPE.findall(html), *_COMMON_TYPES}
    head = _render_head(title)
    top = _render_top(current)
    head += "".join(link_script(name, _EARLY) for name in scripts)
    if frame is not None:
        top += _render_first_view(title, frame)
    if scripts:
        top += f'<script type="application/json" id="first-content">{CONTENT_MARK}</script>'
    head += _render_gradio_head(types, is_urgent=frame is None)
    html = _remove_script(_MANIFEST.sub("", html), _SPACES_MARK)
    html = html.replace('control_page_title="true"', 'control_page_title="false"', 1)
    # The head of Gradio begins with its character set and base.
    html = re.sub(r"(<base\b[^>]*>)", lambda found: f"{found[1]}{head}", html, count=1)
    # The theme has other values for some variables than Gradio's style at the end of the head.
    html = html.replace("</head>", f"{_link_theme(theme_hash)}</head>", 1)
    return _BODY.sub(lambda found: f"{found[0]}{top}", html, count=1)


def _remove_script(html: str, mark: str) -> str:
    """Remove the first script that contains a mark, if there is one."""
    position = html.find(mark)
    if position < 0:
        return html
    before, after = html[:position], html[position:]
    starts = [found.start() for found in _SCRIPT.finditer(before)]
    if not starts or _SCRIPT_END in before[starts[-1] :]:
        return html
    return before[: starts[-1]] + after.partition(_SCRIPT_END)[2]


def _link_theme(theme_hash: str = "") -> str:
    address = f"theme.css?v={theme_hash}" if theme_hash else "theme.css"
    return f'<link rel="stylesheet" href="{address}">'


def _render_head(title: str) -> str:
    return (
        f"<title>{escape(title)} · Tuneserve</title>"
        f"<script>{_read_theme_script()}</script>"
        f'<link rel="icon" href="{link_asset("icon.svg")}" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{link_asset(FRAME_STYLE)}">'
        f"{link_script('translate.js', _EARLY)}{link_script('page.js', _EARLY)}"
    )


def _render_gradio_head(types: Iterable[str], *, is_urgent: bool) -> str:
    """Render the links to the styles of what Gradio draws, and to the files that its scripts load.

    A browser would find most of these files only after it has run the scripts before them. They are
    not urgent in a document with a frame, which is shown without them.
    """
    scripts, styles = list_needed_files(types)
    attributes = "crossorigin" if is_urgent else 'crossorigin fetchpriority="low"'
    return (
        f'<link rel="stylesheet" href="{link_asset(PAGE_STYLE)}">'
        + "".join(f'<link rel="modulepreload" {attributes} href="{name}">' for name in scripts)
        + "".join(f'<link rel="preload" as="style" {attributes} href="{name}">' for name in styles)
    )


def _render_top(current: str | None) -> str:
    header = markup.render_header(current, list_languages())
    return f'<a class="ts-skip" href="#content">Skip to the content</a>{header}'


def _render_first_view(title: str, frame: Frame) -> str:
    """Render a frame in the place where Gradio will show it, with the classes of its styles.

    The frame is moved into Gradio's part of the document later, and the rest of this is removed.
    """
    styles = f"gradio-container gradio-container-{gradio.__version__.replace('.', '-')}"
    return (
        f'<div class="ts-first-view {styles}"><main id="content" class="main fillable">'
        f'<h1 class="ts-hidden">{escape(title)}</h1>'
        f'<div id="{frame.elem_id}">{frame.render()}</div></main></div>'
    )


@cache
def _read_theme_script() -> str:
    return (ASSETS / "theme.js").read_text()
