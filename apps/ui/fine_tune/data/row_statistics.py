"""What is in all rows of a file: lengths in tokens, equal rows, and rows with faults."""

from collections.abc import Mapping, Sequence
from html import escape

from apps.client.client import ApiClient
from apps.client.files import FindingList
from apps.client.row_resources import FileStatistics, RowFinding
from apps.ui import markup
from apps.ui.fine_tune.data.length_histogram import render_histogram
from apps.ui.fine_tune.data.preview import name_row

MAX_LISTED = 20
READING = "Reading all rows; a large file takes minutes …"


async def read_statistics(
    client: ApiClient, model: str, data: str, settings: Mapping[str, object]
) -> tuple[FileStatistics, str]:
    """Return the statistics of the rows for a model and settings, and their HTML.

    Starts to read the rows if nobody has; raises `ApiClientError`.
    """
    found = await client.rows.get_statistics(data, model, settings)
    if found.is_running:
        return found, markup.render_notice(READING)
    counts: dict[FindingList, int] = {
        "faults": found.num_faulty_rows,
        "duplicates": found.num_duplicate_rows,
    }
    lists = [
        await client.rows.list_findings(data, model, kind, settings, MAX_LISTED) if count else []
        for kind, count in counts.items()
    ]
    return found, render_statistics(found, *lists)


def render_statistics(
    found: FileStatistics, faults: Sequence[RowFinding], duplicates: Sequence[RowFinding]
) -> str:
    """Render the figures, the lengths, and the first rows with faults and equal rows."""
    figures = [
        ("Rows", f"{found.num_rows:,}"),
        ("Faulty rows", f"{found.num_faulty_rows:,}"),
        ("Equal to an earlier row", f"{found.num_duplicate_rows:,}"),
    ]
    histogram = render_histogram(found.lengths, found.max_length) if found.lengths else ""
    note = ""
    if found.num_compared_rows < found.num_rows:
        note = (
            f'<p class="ts-muted">Only the first {found.num_compared_rows:,} rows were compared '
            "with each other.</p>"
        )
    return (
        f"{markup.render_figures(figures)}{note}{histogram}"
        f"{_render_list('Faulty rows', faults, found.num_faulty_rows)}"
        f"{_render_list('Equal rows', duplicates, found.num_duplicate_rows)}"
    )


def _render_list(title: str, rows: Sequence[RowFinding], count: int) -> str:
    if not rows:
        return ""
    lines = "".join(
        f"<tr><th scope='row'>{escape(name_row(row.number, row.line))}</th>"
        f"<td>{markup.keep_english(row.reason)}</td><td><code>{escape(row.content)}</code></td></tr>"
        for row in rows
    )
    shown = f", the first {len(rows)}" if count > len(rows) else ""
    return (
        f'<section class="ts-findings"><h3>{title} ({count:,}{shown})</h3><div class="ts-table">'
        "<table><thead><tr><th scope='col'>Row</th><th scope='col'>Reason</th>"
        f"<th scope='col'>Content</th></tr></thead><tbody>{lines}</tbody></table></div></section>"
    )
