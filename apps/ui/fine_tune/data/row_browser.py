"""The rows of a file as text: page by page, with a search."""

from html import escape

from apps.client.client import ApiClient
from apps.client.row_resources import FileRow, FileRowPage, RowValue
from apps.ui import markup
from apps.ui.fine_tune.data.preview import name_row

PAGE_ROWS = 20
SHORT_CHARACTERS = 320
"""The characters of a value that are shown at first; the others open on a click."""
MAX_SEARCHES = 4
"""Calls of the API, of a few seconds each, in which nothing was found, until the visitor is asked
whether to continue."""


async def read_rows(client: ApiClient, data: str, after: str, search: str) -> FileRowPage:
    """Read a page of a file; a search of a large file continues until something is found.

    `after` is the id of the row before it; empty for the first page. Raises `ApiClientError`.
    """
    start = after or None
    for _ in range(MAX_SEARCHES):
        page = await client.rows.read_page(data, start, search, PAGE_ROWS)
        if page.data or not page.has_more:
            break
        start = page.next_after
    return page


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
