"""What is in all rows of a file: lengths in tokens, equal rows, and rows with faults."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.files import FindingList
from apps.client.row_resources import FileStatistics, RowFinding
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.fine_tune.data.length_histogram import render_histogram
from apps.ui.fine_tune.data.preview import name_row
from apps.ui.fine_tune.setting_form import Entered, collect_row_settings

MAX_LISTED = 20
_PATIENCE_S = 600.0
_INTERVAL_S = 2.0
NO_DATA = "Choose a model and data to see the lengths of the rows here."
READING = "Reading all rows; a large file takes minutes …"
STILL_READING = "The rows are still being read. Open this tab again to see the result."
SAVE_JS = """(saved) => {
  if (!saved) return;
  const { name, text } = JSON.parse(saved);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}"""


class StatisticsWatch:
    """What a tab asked for last; an answer to something else is not shown."""

    def __init__(self) -> None:
        self.asked: object = None


class RowStatistics:
    """The components and event handlers of the statistics."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.watch: gr.State = gr.State(StatisticsWatch())
        self.content = gr.HTML(elem_id="row-statistics", min_height=80)
        with gr.Row(elem_id="findings-buttons"):
            self.save_faults = gr.Button(
                "Download the faulty rows", elem_id="save-faults", size="sm", visible=False
            )
            self.save_duplicates = gr.Button(
                "Download the equal rows", elem_id="save-duplicates", size="sm", visible=False
            )
        self.saved = gr.Textbox(visible="hidden", elem_id="saved-rows", show_label=False)

    @property
    def outputs(self) -> list[Any]:
        """What `show_statistics` updates."""
        return [self.content, self.save_faults, self.save_duplicates]

    async def show_statistics(
        self,
        watch: StatisticsWatch,
        model: str | None,
        data: str | None,
        entered: Entered,
        defaults: Mapping[str, Any] | None,
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """Show the statistics of the rows for the chosen model and the entered settings."""
        if not model or not data:
            yield _show(markup.render_notice(NO_DATA))
            return
        watch.asked = asked = object()
        yield _show(markup.render_notice(READING))
        try:
            settings = collect_row_settings(defaults, entered) if defaults else {}
            deadline = time.monotonic() + _PATIENCE_S
            found = await self._client.rows.get_statistics(data, model, settings)
            while found.is_running and time.monotonic() < deadline:
                await asyncio.sleep(_INTERVAL_S)
                if watch.asked is not asked:
                    return
                found = await self._client.rows.get_statistics(data, model, settings)
            lists = [] if found.is_running else await self._list(data, model, found, settings)
        except (ApiClientError, ValueError) as exc:
            reason = describe_error(exc) if isinstance(exc, ApiClientError) else str(exc)
            shown = _show(markup.render_notice(reason, "error"))
        else:
            shown = show_found(found, *lists)
        if watch.asked is asked:
            yield shown

    async def _list(
        self, data: str, model: str, found: FileStatistics, settings: Mapping[str, object]
    ) -> list[list[RowFinding]]:
        counts: dict[FindingList, int] = {
            "faults": found.num_faulty_rows,
            "duplicates": found.num_duplicate_rows,
        }
        return [
            await self._client.rows.list_findings(data, model, kind, settings, MAX_LISTED)
            if count
            else []
            for kind, count in counts.items()
        ]

    async def download_faults(
        self, model: str, data: str, entered: Entered, defaults: Mapping[str, Any] | None
    ) -> str:
        """Return the faulty rows as a file for the browser."""
        return await self._download("faults", model, data, entered, defaults)

    async def download_duplicates(
        self, model: str, data: str, entered: Entered, defaults: Mapping[str, Any] | None
    ) -> str:
        """Return the equal rows as a file for the browser."""
        return await self._download("duplicates", model, data, entered, defaults)

    async def _download(
        self,
        kind: FindingList,
        model: str,
        data: str,
        entered: Entered,
        defaults: Mapping[str, Any] | None,
    ) -> str:
        try:
            settings = collect_row_settings(defaults, entered) if defaults else {}
            text = await self._client.rows.download_findings(data, model, kind, settings)
        except (ApiClientError, ValueError) as exc:
            reason = describe_error(exc) if isinstance(exc, ApiClientError) else str(exc)
            raise gr.Error(escape(reason), print_exception=False) from exc
        return json.dumps({"name": f"{data}-{kind}.csv", "text": text})


def _show(content: str, num_faults: int = 0, num_duplicates: int = 0) -> tuple[Any, ...]:
    return content, gr.Button(visible=num_faults > 0), gr.Button(visible=num_duplicates > 0)


def show_found(
    found: FileStatistics, faults: Sequence[RowFinding] = (), duplicates: Sequence[RowFinding] = ()
) -> tuple[Any, ...]:
    """Show statistics, or that the rows are still being read."""
    if found.is_running:
        return _show(markup.render_notice(STILL_READING))
    return _show(
        render_statistics(found, faults, duplicates),
        found.num_faulty_rows,
        found.num_duplicate_rows,
    )


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
