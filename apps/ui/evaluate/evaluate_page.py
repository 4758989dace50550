"""The page "Evaluate": start evaluations of models on rows, list them, and show one.

The script `evaluate.js` shows what the URL names. It asks for the view at intervals and after what
a visitor does, as that of the page "Runs", and gets only what has changed.
"""

from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr
from starlette.requests import Request

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.evaluate.evaluate_frame import EVALUATE_FRAME
from apps.ui.evaluate.evaluate_request import (
    EvaluateAction,
    EvaluateRequest,
    read_address,
    read_evaluate_action,
    read_evaluate_request,
)
from apps.ui.evaluate.evaluation_list import read_evaluation_list
from apps.ui.evaluate.evaluation_view import read_evaluation
from apps.ui.evaluate.start_form import complete_request, explain_refusal, read_form
from apps.ui.frame.first_views import FirstViews, Frame
from apps.ui.tab_frame import build_tab_frame
from apps.ui.tab_state import Content, FirstStates, TabMessage, TabState, write_message

LIST_INTERVALS_S = (3.0, 10.0)
EVALUATION_INTERVALS_S = (2.0, 30.0)
"""Seconds between refreshes while a shown evaluation is active, and otherwise."""
SCRIPTS = ("tab", "evaluate")


class _EvaluateHandlers:
    """The functions that the script calls."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._first_states = FirstStates()

    async def read_first(self, request: Request) -> TabMessage:
        """Return the first message for the address of a document."""
        asked = read_address(request.query_params)
        return self._first_states.keep(*await self._update(asked, TabState()))

    async def update_evaluations(
        self, state: TabState, event: gr.EventData
    ) -> tuple[TabMessage, TabState]:
        """Return a message with what has changed."""
        return await self._update(read_evaluate_request(event._data), state)

    async def change_evaluations(
        self, state: TabState, event: gr.EventData
    ) -> tuple[Any, TabState]:
        """Start, cancel or delete an evaluation, and return a message that ends the wait for it."""
        asked = read_evaluate_action(event._data)
        if asked is None:
            return gr.skip(), state
        if asked.action == "start":
            end = await self._start(asked)
        else:
            end = {"is_done": await self._change(asked)}
        shown: EvaluateRequest = asked
        if asked.action == "delete" and end["is_done"]:
            shown = EvaluateRequest(applied=asked.applied)
        return await self._update(shown, state, {"end": {"action": asked.action, **end}})

    async def _start(self, asked: EvaluateAction) -> dict[str, object]:
        """Start an evaluation; return its id, or the problems by the fields of the form."""
        request, problems = read_form(asked)
        if request is None:
            return {"is_done": False, "problems": problems}
        try:
            request = await complete_request(self._client, request)
            made = await self._client.evaluations.create(request)
        except ApiClientError as exc:
            return {"is_done": False, "problems": explain_refusal(exc)}
        return {"is_done": True, "evaluation": made.id}

    async def _change(self, asked: EvaluateAction) -> bool:
        """Cancel or delete the shown evaluation; return whether it was done."""
        evaluations = self._client.evaluations
        try:
            if asked.action == "cancel":
                await evaluations.cancel(asked.evaluation)
            else:
                await evaluations.delete(asked.evaluation)
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return False
        return True

    async def _update(
        self, asked: EvaluateRequest, state: TabState, additions: dict[str, object] | None = None
    ) -> tuple[TabMessage, TabState]:
        before = self._first_states.select_for(asked, state)
        try:
            content = await self._read(asked, before)
        except ApiClientError as exc:  # the next refresh retries
            notice = markup.render_notice(describe_error(exc), "error")
            content = Content(parts={"notice": notice})
        return write_message(replace(content, additions=additions or {}), before)

    async def _read(self, asked: EvaluateRequest, state: TabState) -> Content:
        if asked.view == "evaluation":
            return await read_evaluation(self._client, asked, state, EVALUATION_INTERVALS_S)
        return await read_evaluation_list(self._client, asked, state, LIST_INTERVALS_S)


def build_evaluate_page(client: ApiClient, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _EvaluateHandlers(client)
    build_tab_frame(
        first_views,
        "evaluate",
        Frame("evaluate-page", EVALUATE_FRAME, SCRIPTS),
        page.read_first,
        page.update_evaluations,
        page.change_evaluations,
    )
