"""The page "Runs": the list of runs, one run, and several compared.

The script `runs.js` shows what the URL names. It asks for the view at intervals and after what a
visitor does, and puts the changes in a message into the frame, so that nothing flickers, an open
page causes little traffic, and what the visitor has chosen stays.
"""

from collections.abc import Awaitable
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr
from starlette.requests import Request

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.client.jobs import JobExtension
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.frame.first_views import FirstViews, Frame
from apps.ui.runs.merging import AdapterMerger
from apps.ui.runs.run_comparison import read_comparison
from apps.ui.runs.run_list import read_run_list
from apps.ui.runs.run_result import LATEST
from apps.ui.runs.run_view import read_run
from apps.ui.runs.runs_frame import FRAME
from apps.ui.runs.sparklines import Sparklines
from apps.ui.runs.view_request import (
    ActionRequest,
    ViewRequest,
    is_extension,
    read_action_request,
    read_address,
    read_view_request,
)
from apps.ui.tab_frame import build_tab_frame
from apps.ui.tab_state import Content, FirstStates, TabMessage, TabState, write_message

LIST_INTERVALS_S = (3.0, 10.0)
RUN_INTERVALS_S = (2.0, 10.0)
"""Seconds between refreshes while a shown run is active, and otherwise."""
_INVALID_LENGTH = "The length is not a whole number that can be read; please change it."
SCRIPTS = ("uplot", "run_curves", "tab", "runs")


async def read_content(
    client: ApiClient, asked: ViewRequest, state: TabState, sparklines: Sparklines
) -> Content:
    """Request what a tab shows; raises `ApiClientError`."""
    if asked.view == "run":
        return await read_run(client, asked, state, RUN_INTERVALS_S)
    if asked.view == "compare":
        return await read_comparison(client, asked, LIST_INTERVALS_S)
    return await read_run_list(client, asked, sparklines, LIST_INTERVALS_S)


class _Page:
    """The functions that the script calls."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._sparklines = Sparklines()
        self._first_states = FirstStates()

    async def read_first(self, request: Request) -> TabMessage:
        """Return the first message for the address of a document."""
        asked = read_address(request.query_params)
        return self._first_states.keep(*await self._update(asked, TabState()))

    async def update_runs(self, state: TabState, event: gr.EventData) -> tuple[Any, TabState]:
        """Return a message with what has changed."""
        return await self._update(read_view_request(event._data), state)

    async def change_run(self, state: TabState, event: gr.EventData) -> tuple[Any, TabState]:
        """Change a run, and return a message that ends the wait for it."""
        asked = read_action_request(event._data)
        if asked is None and is_extension(event._data):  # its dialog waits for an end
            return await self._refuse_extension(read_view_request(event._data), state)
        if asked is None:
            return gr.skip(), state
        if asked.action == "extend":
            return await self._extend(asked, state)
        is_done = True
        try:
            await self._change(asked)
        except ApiClientError as exc:
            is_done = False
            gr.Warning(escape(describe_error(exc)))
        if is_done and asked.action == "delete":
            shown: ViewRequest = ViewRequest(applied=asked.applied)
        else:
            shown = asked
        end = {"action": asked.action, "is_done": is_done}
        return await self._update(shown, state, {"end": end})

    async def _extend(self, asked: ActionRequest, state: TabState) -> tuple[TabMessage, TabState]:
        """Extend a run, and show the new one; a refusal is shown in the dialog."""
        end: dict[str, object] = {"action": asked.action}
        extension: JobExtension = {
            "epochs": asked.epochs,
            "max_steps": asked.max_steps,
            "suffix": asked.name or None,
        }
        try:
            job = await self._client.jobs.extend(asked.run, extension)
        except ApiClientError as exc:
            is_refusal = isinstance(exc, RequestRefusedError)
            end |= {"is_done": False, "error": describe_error(exc), "is_of_api": is_refusal}
            end["param"] = exc.param if isinstance(exc, RequestRefusedError) else None
            return await self._update(asked, state, {"end": end})
        end |= {"is_done": True, "run": job.id}
        shown = ViewRequest(view="run", run=job.id, applied=asked.applied)
        return await self._update(shown, state, {"end": end})

    async def _refuse_extension(
        self, shown: ViewRequest, state: TabState
    ) -> tuple[TabMessage, TabState]:
        end = {"action": "extend", "is_done": False, "error": _INVALID_LENGTH, "param": None}
        return await self._update(shown, state, {"end": end})

    async def _update(
        self, asked: ViewRequest, state: TabState, more: dict[str, object] | None = None
    ) -> tuple[TabMessage, TabState]:
        before = self._first_states.select_for(asked, state)
        try:
            content = await read_content(self._client, asked, before, self._sparklines)
        except ApiClientError as exc:  # the next refresh retries
            notice = markup.render_notice(describe_error(exc), "error")
            content = Content(parts={"notice": notice}, known=before.known)
        if more:
            content = replace(content, additions={**content.additions, **more})
        return write_message(content, before)

    def _change(self, asked: ActionRequest) -> Awaitable[object]:
        """Start the requested change; it raises `ApiClientError`."""
        client, run = self._client, asked.run
        match asked.action:
            case "pause":
                return client.jobs.pause(run)
            case "resume":
                return client.jobs.resume(run)
            case "cancel":
                return client.jobs.cancel(run)
            case "delete":
                return client.jobs.delete(run)
            case "extend":
                raise AssertionError("extended by `_extend`, which shows the new run")
            case "merge":
                return AdapterMerger(client).merge(run)
            case "publish":
                outputs = client.job_outputs
                return outputs.publish_checkpoint(run, asked.checkpoint, asked.name or None)
            case "promote":
                return self._promote(run)

    async def _promote(self, run: str) -> None:
        job = await self._client.jobs.get(run)
        if job.fine_tuned_model:
            await self._client.aliases.point(LATEST, job.fine_tuned_model)


def build_runs_page(client: ApiClient, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client)
    build_tab_frame(
        first_views,
        "runs",
        Frame("runs-page", FRAME, SCRIPTS),
        page.read_first,
        page.update_runs,
        page.change_run,
    )
