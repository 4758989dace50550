"""The rows of a file as text: page by page, with a search."""

from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.row_resources import FileRow, FileRowPage, RowValue
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.fine_tune.data.preview import name_row

PAGE_ROWS = 20
SHORT_CHARACTERS = 320
"""The characters of a value that are shown at first; the others open on a click."""
MAX_SEARCHES = 4
"""Calls of the API, of a few seconds each, in which nothing was found, until the visitor is asked
whether to continue."""


@dataclass(frozen=True)
class RowView:
    """What is shown: the places where this page and those before begin, and the next one."""

    data: str | None = None
    search: str = ""
    starts: tuple[str | None, ...] = (None,)
    next_start: str | None = None

    def advance(self) -> "RowView":
        """Return the view of the next page, if there is one."""
        if self.next_start is None:
            return self
        return replace(self, starts=(*self.starts, self.next_start), next_start=None)

    def step_back(self) -> "RowView":
        """Return the view of the page before, if there is one."""
        return replace(self, starts=self.starts[:-1]) if len(self.starts) > 1 else self


class RowBrowser:
    """The components and event handlers of the rows."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.view: gr.State = gr.State(RowView())
        with gr.Row(equal_height=True, elem_id="row-search-bar"):
            self.search = gr.Textbox(
                label="Search the rows",
                placeholder="Text in any part of a row",
                max_length=200,
                elem_id="row-search",
                scale=4,
            )
            self.find = gr.Button("Search", elem_id="row-find", scale=1, min_width=90)
        self.rows = gr.HTML(elem_id="file-rows", min_height=80)
        with gr.Row(elem_id="row-pages"):
            self.previous = gr.Button("← Previous", elem_id="rows-previous", size="sm")
            self.next = gr.Button("Next →", elem_id="rows-next", size="sm")

    @property
    def outputs(self) -> list[Any]:
        """What every handler updates."""
        return [self.view, self.rows, self.previous, self.next]

    async def search_rows(self, data: str | None, search: str) -> tuple[Any, ...]:
        """Show the first rows of a file, or the first ones that contain a text."""
        return await self.show(RowView(data, (search or "").strip()))

    async def show_next_rows(self, view: RowView) -> tuple[Any, ...]:
        """Show the next page."""
        return await self.show(view.advance())

    async def show_previous_rows(self, view: RowView) -> tuple[Any, ...]:
        """Show the page before."""
        return await self.show(view.step_back())

    async def show(self, view: RowView) -> tuple[Any, ...]:
        """Show the page of a view."""
        if view.data is None:
            text = markup.render_notice("Choose data to see its rows here.")
            return view, text, *_show_buttons(view)
        try:
            page = await self._read(view.data, view.starts[-1], view.search)
        except ApiClientError as exc:
            view = replace(view, next_start=None)
            return view, markup.render_notice(describe_error(exc), "error"), *_show_buttons(view)
        view = replace(view, next_start=page.next_after if page.has_more else None)
        return view, render_rows(page, view.search), *_show_buttons(view)

    async def _read(self, data: str, after: str | None, search: str) -> FileRowPage:
        """Read a page; a search of a large file continues until something is found."""
        for _ in range(MAX_SEARCHES):
            page = await self._client.rows.read_page(data, after, search, PAGE_ROWS)
            if page.data or not page.has_more:
                break
            after = page.next_after
        return page


def _show_buttons(view: RowView) -> tuple[Any, Any]:
    return (
        gr.Button(interactive=len(view.starts) > 1),
        gr.Button(interactive=view.next_start is not None),
    )


def render_rows(page: FileRowPage, search: str = "") -> str:
    """Render the rows of a page, with what was searched marked."""
    if not page.data:
        return f'<p class="ts-empty" role="status">{escape(_describe_nothing(page, search))}</p>'
    first, last = page.data[0].number, page.data[-1].number
    verb = "contain" if first != last else "contains"
    found = f" that {verb} “{search}”" if search else ""
    more = ", and there are more" if page.has_more else ", the last ones"
    line = (
        f"Rows {first:,} to {last:,}{found}{more}." if first != last else f"Row {first:,}{found}."
    )
    rows = "".join(_render_row(row, search) for row in page.data)
    return f'<p class="ts-legend" role="status">{escape(line)}</p><div class="ts-rows">{rows}</div>'


def _describe_nothing(page: FileRowPage, search: str) -> str:
    if page.has_more:
        return (
            f"No row up to row {page.last_number:,} contains “{search}”. Next continues the search."
        )
    return f"No more rows contain “{search}”." if search else "The file has no more rows."


def _render_row(row: FileRow, search: str) -> str:
    name = name_row(row.number, row.line)
    if row.fault is not None:
        content = f'<p class="ts-fault">Cannot be read: {markup.keep_english(row.fault)}</p>'
    else:
        values = "".join(_render_value(value, search) for value in row.values)
        content = f'<dl class="ts-values" translate="no">{values}</dl>'
    num_hidden = row.num_values - len(row.values)
    if num_hidden > 0:
        content += f'<p class="ts-muted">… {num_hidden:,} more</p>'
    label = escape(name)
    return (
        f'<article class="ts-row" aria-label="{label}"><span class="ts-line">{label}</span>'
        f"{content}</article>"
    )


def _render_value(value: RowValue, search: str) -> str:
    kind = f"ts-{value.name}" if value.kind == "turn" and value.name.isalpha() else ""
    return (
        f'<div class="ts-value-of {escape(kind)}"><dt>{escape(value.name)}</dt>'
        f"<dd>{_render_text(value, search)}</dd></div>"
    )


def _render_text(value: RowValue, search: str) -> str:
    rest = value.num_characters - len(value.text)
    more = f'<span class="ts-muted" translate="yes"> … {rest:,} more characters</span>'
    end = more if rest > 0 else ""
    if len(value.text) <= SHORT_CHARACTERS:
        return mark_found(value.text, search) + end
    short = mark_found(value.text[:SHORT_CHARACTERS], search)
    return (
        f'<details><summary>{short}<u translate="yes">… more</u></summary>'
        f"{mark_found(value.text[SHORT_CHARACTERS:], search)}{end}</details>"
    )


def mark_found(text: str, search: str) -> str:
    """Escape a text, and mark where it contains another one in any case."""
    if not search:
        return escape(text)
    pieces, start = [], 0
    lowered, wanted = text.lower(), search.lower()
    if len(lowered) != len(text):  # a few letters change their length
        return escape(text)
    while (place := lowered.find(wanted, start)) >= 0:
        end = place + len(wanted)
        pieces += [escape(text[start:place]), f"<mark>{escape(text[place:end])}</mark>"]
        start = end
    return "".join(pieces) + escape(text[start:])
