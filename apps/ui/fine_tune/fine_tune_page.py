"""The page "Fine-tune": choose a model and data, see the data, start a job.

The script `fine_tune.js` shows it in a frame of plain HTML, which a browser draws much faster than
Gradio's components. The browser has what is chosen and entered, and sends it with each request, so
that the server keeps nothing of a tab. There are four kinds of requests, each with an answer of its
own: what belongs to a choice, what a tab with data shows, a check of the settings, and actions.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr
from starlette.requests import Request

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.events import QUIET
from apps.ui.fine_tune.data.data_tabs import download_findings, read_tab
from apps.ui.fine_tune.data.file_menu import add_file
from apps.ui.fine_tune.fine_tune_frame import FINE_TUNE_FRAME
from apps.ui.fine_tune.fine_tune_request import (
    DataRequest,
    FineTuneAction,
    read_address,
    read_choice_request,
    read_data_request,
    read_fields_request,
    read_fine_tune_action,
)
from apps.ui.fine_tune.job_choice import JobChoice, read_choice
from apps.ui.fine_tune.planned_job import (
    check_job,
    fill_in_settings,
    start_job,
    write_settings,
)
from apps.ui.fine_tune.setting_form import SettingForm
from apps.ui.frame.first_views import PATIENCE_S, FirstViews
from apps.ui.frame.page_element import build_frame
from apps.ui.protection.uploads import ForeignFileError, UploadFolder

ANSWERS = ("choice", "tokens", "rows", "statistics", "verdict", "outcome")
"""The properties of the component that have answers."""
PREVIEW_PATIENCE_S = 1.0
"""How long a document waits for the preview, which waits for checks and for jobs being created.

Less if the choice took long: a document without the preview is better than one without anything.
"""
_RESERVE_S = 0.2
"""What is left of the document's patience when the wait for the preview ends."""
_logger = logging.getLogger(__name__)


class _FineTuneHandlers:
    """The functions that the script calls."""

    def __init__(self, client: ApiClient, uploads: UploadFolder) -> None:
        self._client = client
        self._uploads = uploads

    async def read_first(self, request: Request) -> Mapping[str, Any]:
        """Return the first choice and the preview of its data, for the document."""
        began = time.monotonic()
        asked = read_address(request.query_params, request.cookies)
        try:
            choice = await read_choice(self._client, asked)
        except ApiClientError as exc:
            return {"choice": _describe_failure(exc)}
        message = {"choice": _describe_choice(choice)}
        left = began + PATIENCE_S - _RESERVE_S - time.monotonic()
        patience = max(0, min(PREVIEW_PATIENCE_S, left))
        try:
            tokens = await asyncio.wait_for(self._read_preview(choice), patience)
        except TimeoutError:  # the script asks for it
            return message
        return {**message, "tokens": tokens}

    async def _read_preview(self, choice: JobChoice) -> Mapping[str, Any]:
        chosen = {"model": choice.model or "", "data": choice.data or ""}
        asked = DataRequest.model_validate({**chosen, "fields": choice.entered})
        form = SettingForm(choice.defaults) if choice.defaults else None
        return await read_tab(self._client, asked, form)

    async def choose_job(self, event: gr.EventData) -> Any:
        """Return what belongs to a choice."""
        asked = read_choice_request(event._data)
        try:
            message = _describe_choice(await read_choice(self._client, asked))
        except ApiClientError as exc:
            message = _describe_failure(exc)
        return _answer("choice", asked.serial, message)

    async def show_data(self, event: gr.EventData) -> Any:
        """Return what a tab with data shows."""
        asked = read_data_request(event._data)
        return _answer(asked.tab, asked.serial, await read_tab(self._client, asked))

    async def check_settings(self, event: gr.EventData) -> Any:
        """Return whether the job can start, and what it will take."""
        asked = read_fields_request(event._data)
        return _answer("verdict", asked.serial, await check_job(self._client, asked))

    async def perform_action(self, event: gr.EventData) -> Any:
        """Do what a visitor wants, and return what came of it."""
        asked = read_fine_tune_action(event._data)
        if asked is None:
            return gr.skip()
        outcome: Mapping[str, Any] = {"is_done": False}
        try:
            outcome = await self._perform(asked)
        except ForeignFileError as exc:
            _logger.warning("An upload was refused: %s", exc)
            gr.Warning("This file was not uploaded to this page.")
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
        except ValueError as exc:
            gr.Warning(escape(str(exc)))
        return _answer("outcome", asked.serial, outcome)

    async def _perform(self, asked: FineTuneAction) -> Mapping[str, Any]:
        """Perform an action; raises `ApiClientError`, `ForeignFileError` and `ValueError`."""
        client = self._client
        match asked.action:
            case "start":
                return await start_job(client, asked)
            case "add":
                return {"is_done": True, "data": await add_file(client, self._uploads, asked.path)}
            case "delete":
                await client.files.delete(asked.data)
                return {"is_done": True, "data": asked.data}
            case "write":
                return {"is_done": True, "text": await write_settings(client, asked)}
            case "fill_in":
                return await fill_in_settings(client, asked)
            case "save":
                return {"is_done": True, **await download_findings(client, asked, asked.findings)}


def _describe_choice(choice: JobChoice) -> Mapping[str, Any]:
    notice = choice.former.notice if choice.former is not None else ""
    return {"notice": markup.render_notice(notice), **choice.to_message()}


def _describe_failure(exc: ApiClientError) -> Mapping[str, Any]:
    """Return why a choice has no settings."""
    return {"notice": markup.render_notice(describe_error(exc), "error")}


def _answer(kind: str, serial: int, message: Mapping[str, Any]) -> Any:
    """Return an answer as the property of the component that the script watches."""
    properties: dict[str, Any] = {kind: {"serial": serial, **message}}
    return gr.HTML(**properties)


def build_fine_tune_page(client: ApiClient, uploads: UploadFolder, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _FineTuneHandlers(client, uploads)
    events = {
        "choose": page.choose_job,
        "show": page.show_data,
        "check": page.check_settings,
        "act": page.perform_action,
    }
    element = build_frame(
        first_views, "", FINE_TUNE_FRAME, page.read_first, events=[*events], answers=ANSWERS
    )
    for name, function in events.items():
        # The script waits for each answer; Gradio's other modes would drop what an event carries.
        getattr(element, name)(function, None, element, trigger_mode="multiple", **QUIET)
