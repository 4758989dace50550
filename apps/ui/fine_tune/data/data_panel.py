"""The data of the page "Fine-tune" in three tabs: first rows as tokens, all rows, statistics."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from apps.client.client import ApiClient
from apps.ui.events import LATEST, LATEST_SHOWN, QUIET
from apps.ui.fine_tune.data.column_mapping import REMEMBER_COLUMNS_JS, ColumnMapping
from apps.ui.fine_tune.data.row_browser import RowBrowser, RowView
from apps.ui.fine_tune.data.row_statistics import SAVE_JS, RowStatistics, StatisticsWatch
from apps.ui.fine_tune.setting_form import Entered

TOKENS, ROWS, STATISTICS = "tokens", "rows", "statistics"
ShowPreview = Callable[[str | None, str | None, Entered, Mapping[str, Any] | None], Awaitable[str]]


_PRIVATE: Any = {"api_visibility": "private"}


class DataPanel:
    """The tabs, the menus of columns above them, and their event handlers."""

    def __init__(self, client: ApiClient) -> None:
        self.columns = ColumnMapping(client)
        # Set by the browser alone: Gradio reports the first tab as soon as it is drawn.
        self.tab = gr.Textbox(TOKENS, visible="hidden", elem_id="data-tab", show_label=False)
        with gr.Tabs(elem_id="data-tabs"):
            with gr.Tab("First rows as tokens", id=TOKENS) as self.tokens_tab:
                self.preview = gr.HTML(elem_id="preview", min_height=120)
            with gr.Tab("All rows", id=ROWS) as self.rows_tab:
                self.browser = RowBrowser(client)
            with gr.Tab("Lengths and faults", id=STATISTICS) as self.statistics_tab:
                self.statistics = RowStatistics(client)

    async def refresh_rows(self, tab: str, data: str | None, view: RowView) -> tuple[Any, ...]:
        """Show the rows of another file, if rows are shown; begin without a search."""
        if tab != ROWS or view.data == data:
            return (*(gr.skip() for _ in self.browser.outputs), gr.skip())
        return (*await self.browser.search_rows(data, ""), "")

    async def refresh_statistics(
        self,
        tab: str,
        watch: StatisticsWatch,
        model: str | None,
        data: str | None,
        entered: Entered,
        defaults: Mapping[str, Any] | None,
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """Show the statistics of another file, model or setting, if they are shown."""
        if tab != STATISTICS:
            watch.asked = None
            yield tuple(gr.skip() for _ in self.statistics.outputs)
            return
        async for shown in self.statistics.show_statistics(watch, model, data, entered, defaults):
            yield shown

    def listen(
        self,
        model: Component,
        task: Component,
        data: Component,
        entered: gr.State,
        defaults: gr.State,
        show_preview: ShowPreview,
        choice: gr.State,
    ) -> Dependency:
        """Update the panel when `choice` changes, as after another choice of model, data or task.

        Returns the event after which the columns of the file are known.
        """
        asked = [model, data, entered, defaults]
        fitted: Dependency = choice.change(
            self.columns.read_columns,
            [data, self.columns.found],
            self.columns.found,
            **LATEST,
        ).then(
            self.columns.fit_columns,
            [self.columns.found, self.columns.fitted, data, task, entered],
            [entered, *self.columns.outputs],
            **LATEST,
        )
        gr.on(
            [menu.input for menu in self.columns.menus],
            self.columns.map_columns,
            [task, entered, *self.columns.menus],
            [entered, *self.columns.menus, choice],
            **LATEST,
        ).then(None, [data, task, *self.columns.menus], js=REMEMBER_COLUMNS_JS, **_PRIVATE)
        fitted.then(show_preview, asked, self.preview, **LATEST_SHOWN).then(
            self.refresh_rows,
            [self.tab, data, self.browser.view],
            [*self.browser.outputs, self.browser.search],
            **LATEST,
        ).then(
            self.refresh_statistics,
            [self.tab, self.statistics.watch, *asked],
            self.statistics.outputs,
            **LATEST,
        )
        self._listen_to_tabs(data, asked)
        self._listen_to_rows(data)
        self._listen_to_downloads(asked)
        return fitted

    def _listen_to_tabs(self, data: Component, asked: list[Component]) -> None:
        for tab, name in (
            (self.tokens_tab, TOKENS),
            (self.rows_tab, ROWS),
            (self.statistics_tab, STATISTICS),
        ):
            tab.select(None, None, self.tab, js=f"() => {json.dumps(name)}", **_PRIVATE)
        self.rows_tab.select(
            self.browser.search_rows,
            [data, self.browser.search],
            self.browser.outputs,
            **QUIET,
        )
        self.statistics_tab.select(
            self.statistics.show_statistics,
            [self.statistics.watch, *asked],
            self.statistics.outputs,
            **QUIET,
        )

    def _listen_to_rows(self, data: Component) -> None:
        browser = self.browser
        shown: Any = {"show_progress": "minimal", "show_progress_on": browser.rows, **_PRIVATE}
        gr.on(
            [browser.search.submit, browser.find.click],
            browser.search_rows,
            [data, browser.search],
            browser.outputs,
            **shown,
        )
        browser.next.click(browser.show_next_rows, browser.view, browser.outputs, **shown)
        browser.previous.click(browser.show_previous_rows, browser.view, browser.outputs, **shown)

    def _listen_to_downloads(self, asked: list[Component]) -> None:
        statistics = self.statistics
        for button, download in (
            (statistics.save_faults, statistics.download_faults),
            (statistics.save_duplicates, statistics.download_duplicates),
        ):
            button.click(
                download, asked, statistics.saved, show_progress="minimal", **_PRIVATE
            ).success(None, statistics.saved, None, js=SAVE_JS)
