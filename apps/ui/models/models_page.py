"""The page "Models": all published models, or one of them with its lineage and its aliases.

The URL names the shown model. The timer requests the lists, and what has not changed is not sent to
the browser again. The content of a model never changes, so it is requested once per session.
"""

import asyncio
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.client.evaluation_resources import Evaluation
from apps.client.model_resources import HubPermissions, HubTransfer, Model, ModelAlias
from apps.ui.chat.model_menu import TASK
from apps.ui.error_messages import describe_error
from apps.ui.events import QUIET
from apps.ui.frame.first_views import FirstViews, Frame
from apps.ui.frame.page_element import build_frame
from apps.ui.models.form_fields import FORMS, FormProblem, describe_refusal
from apps.ui.models.hub_view import HubForms, render_install_form, render_transfers
from apps.ui.models.model_actions import ModelAction, perform, read_action
from apps.ui.models.model_detail import (
    ModelContent,
    ModelView,
    render_import_commands,
    render_model,
)
from apps.ui.models.model_evaluations import MAX_SHOWN
from apps.ui.models.model_list import HandoverHistory, render_aliases, render_models
from apps.ui.notices import LOADING, show_notice

INTERVAL_S = 15.0
TRANSFER_INTERVAL_S = 2.0
ASSETS = Path(__file__).parents[1] / "assets"
TRANSFERS_SCRIPT = ASSETS / "transfers.js"
FRAME = Frame("models-view", "<div>${value}</div>", ("models",))
READY_JS = "() => { document.dispatchEvent(new Event('models-ready')); }"
DONE_JS = "() => { document.dispatchEvent(new Event('models-done')); }"
UNKNOWN_MODEL_NOTE = "There is no model {!r}; these are all."
_HEADING = re.compile(r"^#{1,6}(?=\s)")
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_TAG = re.compile(r"<(?=[a-zA-Z/!?])")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


@dataclass(frozen=True)
class ShownModel:
    """What a tab shows: a model or the list, the alias whose history is open, and a hash of it.

    `problem` is that of a form that was refused, `running` the transfers that were in progress, and
    `transfers` their HTML.
    """

    model_id: str = ""
    alias: str = ""
    content: ModelContent | None = None
    digest: str = ""
    problem: FormProblem | None = None
    running: frozenset[str] = frozenset()
    transfers: str = ""


NOTHING_SHOWN = ShownModel()


@dataclass(frozen=True)
class ModelsView:
    """The content of the page at one moment."""

    shown: ShownModel
    html: str
    card: str = ""
    notice: str = ""


async def read_view(client: ApiClient, shown: ShownModel) -> ModelsView:
    """Request the page's content from the API; raises `ApiClientError`."""
    (models, aliases, access), (permitted, transfers) = await asyncio.gather(
        asyncio.gather(client.models.list_all(), client.aliases.list_all(), client.access.get()),
        asyncio.gather(_read_permitted(client), list_transfers(client)),
    )
    history = await _read_history(client, aliases, shown.alias)
    forms = HubForms(permitted, access, shown.problem)
    html = render_transfers(transfers, access)
    shown = replace(shown, running=_find_running(transfers), transfers=html)
    model = find_model(models, shown.model_id)
    card, notice = "", ""
    if model is None:
        notice = UNKNOWN_MODEL_NOTE.format(shown.model_id) if shown.model_id else ""
        html = (
            '<h2 tabindex="-1">Models</h2>'
            f"{render_models(models)}"
            f"<section><h3>Aliases</h3>{render_aliases(aliases, access, history)}</section>"
            f"{render_install_form(forms)}{render_import_commands(access)}"
        )
        shown = replace(shown, model_id="", content=None)
    else:
        content = shown.content
        if content is None or content.card.id != model.id:
            content = ModelContent(
                *await asyncio.gather(
                    client.models.get_card(model.id), client.models.get_lineage(model.id)
                )
            )
        evaluations = await _list_evaluations(client, model)
        view = ModelView(model, content, models, aliases, access, forms, history, evaluations)
        html, card = render_model(view), prepare_card(content.card.text)
        shown = replace(shown, model_id=model.id, content=content)
    digest = sha256(f"{html}\0{card}".encode(errors="surrogatepass")).hexdigest()
    shown = replace(shown, digest=digest)
    return ModelsView(shown, html, card, notice)


async def _read_permitted(client: ApiClient) -> HubPermissions:
    """Return what may be installed and pushed; nothing if the key may not know it."""
    try:
        return await client.hub.get_permissions()
    except RequestRefusedError:
        return HubPermissions()


async def list_transfers(client: ApiClient) -> list[HubTransfer]:
    """Return the last installations and pushes; none if the key may not see them."""
    try:
        return await client.hub.list_transfers()
    except RequestRefusedError:
        return []


def _find_running(transfers: list[HubTransfer]) -> frozenset[str]:
    return frozenset(one.id for one in transfers if one.is_running)


async def _list_evaluations(client: ApiClient, model: Model) -> list[Evaluation] | None:
    """Return the newest evaluations of a model; None if it, or this deployment, has none ever."""
    if model.task != TASK:
        return None
    try:
        return await client.evaluations.list_all(model.id, limit=MAX_SHOWN + 1)
    except RequestRefusedError:  # as by a deployment with upstreams, or for a key without access
        return None


async def _read_history(
    client: ApiClient, aliases: list[ModelAlias], name: str
) -> HandoverHistory | None:
    alias = next((alias for alias in aliases if alias.id == name), None)
    if alias is None:
        return None
    return HandoverHistory(alias, tuple(await client.aliases.list_events(name)))


def find_model(models: list[Model], name: str) -> Model | None:
    """Return the model with this id, or else the one that this alias points to."""
    by_alias = (model for model in models if name in model.aliases)
    return next((model for model in models if model.id == name), next(by_alias, None))


def prepare_card(text: str | None) -> str:
    """Return a model card in Markdown below a heading of this page, without its metadata.

    Cards come from anybody, so HTML in them is shown as text: it could draw buttons of its own.
    """
    if not text:
        return ""
    body = _FRONT_MATTER.sub("", text.replace("\r\n", "\n")).strip()
    lines, is_code = [], False
    for line in body.split("\n"):
        is_fence = _FENCE.match(line) is not None
        is_code = is_code != is_fence
        lines.append(line if is_code or is_fence else _prepare_line(line))
    body = "\n".join(lines)
    return f"### Model card\n\n{body}" if body else ""


def _prepare_line(line: str) -> str:
    """Return a line of Markdown with its heading below those of the page, and HTML as text."""
    line = _HEADING.sub(lambda found: f"###{found[0]}"[:6], line)
    parts = line.split("`")  # every other one is code
    return "`".join(_TAG.sub("&lt;", part) if not n % 2 else part for n, part in enumerate(parts))


class _Page:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient, first_views: FirstViews) -> None:
        self._client = client
        self.notice = gr.HTML(visible=False, elem_id="models-notice")
        self.transfers = gr.HTML(
            visible=False,
            elem_id="hub-transfers",
            js_on_load=TRANSFERS_SCRIPT.read_text(),
            apply_default_css=False,
        )
        self.view = build_frame(first_views, "models", FRAME, self.read_first, LOADING)
        self.card = gr.Markdown(visible=False, elem_id="model-card")
        self.timer = gr.Timer(INTERVAL_S)
        self.shown: gr.State = gr.State(NOTHING_SHOWN)
        self.transfer_timer = gr.Timer(TRANSFER_INTERVAL_S, active=False)
        self.outputs = [self.notice, self.view, self.card, self.shown]
        self.outputs += [self.transfers, self.transfer_timer]

    async def read_first(self, request: Request) -> str:
        """Return the first HTML for the address of a document."""
        shown = ShownModel(request.query_params.get("model", ""))
        return _render(await read_view(self._client, shown))

    async def show_models(self, request: gr.Request) -> list[Any]:
        """Show the model that the URL names, or all."""
        return await self._show(ShownModel(request.query_params.get("model", "")))

    async def update_models(self, shown: ShownModel) -> list[Any]:
        """Update what is shown, if it has changed."""
        try:
            view = await read_view(self._client, shown)
        except ApiClientError as exc:  # the next tick retries
            error = show_notice(describe_error(exc), "error")
            return [error, gr.skip(), gr.skip(), replace(shown, digest=""), gr.skip(), gr.skip()]
        if view.shown.digest == shown.digest:
            return [*[gr.skip()] * 3, *_list_state_updates(view.shown, shown)]
        keeps_notice = shown.digest and not view.notice  # of an action, not of a failed update
        notice = gr.skip() if keeps_notice else show_notice(view.notice, "error")
        return [notice, *_list_updates(view, shown)]

    async def follow_transfers(self, shown: ShownModel) -> list[Any]:
        """Update the transfers; once one begins or ends, also what else is shown."""
        try:
            transfers, access = await asyncio.gather(
                list_transfers(self._client), self._client.access.get()
            )
        except ApiClientError:  # the next tick retries
            return [gr.skip()] * len(self.outputs)
        if _find_running(transfers) != shown.running:
            return await self.update_models(shown)
        found = replace(shown, transfers=render_transfers(transfers, access))
        return [*[gr.skip()] * 3, *_list_state_updates(found, shown)]

    async def change_models(self, shown: ShownModel, event: gr.EventData) -> list[Any]:
        """Open a model, the list or a history; or change a model or an alias, and show it."""
        action = read_action(event._data)
        if action.action == "open":
            return await self._show(_forget_model(shown, action.model))
        if action.action == "history":
            alias = "" if action.alias == shown.alias else action.alias
            return await self._show(replace(shown, alias=alias))
        return await self._change(shown, action)

    async def _change(self, shown: ShownModel, action: ModelAction) -> list[Any]:
        try:
            done = await perform(self._client, action)
        except ApiClientError as exc:
            is_form = action.action in FORMS
            problem = describe_refusal(action.action, exc, action._asdict()) if is_form else None
            notice = "" if problem and problem.message else describe_error(exc)
            return await self._show(replace(shown, problem=problem), notice, "error")
        if action.action == "delete":
            shown = _forget_model(shown)
        return await self._show(replace(shown, problem=None), done)

    async def _show(self, shown: ShownModel, notice: str = "", kind: str = "info") -> list[Any]:
        """Return updates of all outputs."""
        try:
            view = await read_view(self._client, shown)
        except ApiClientError as exc:
            error = show_notice(describe_error(exc), "error")
            return [error, gr.skip(), gr.skip(), shown, gr.skip(), gr.skip()]
        if not notice:
            notice, kind = view.notice, "error"
        return [show_notice(notice, kind), *_list_updates(view, shown)]


def _forget_model(shown: ShownModel, model_id: str = "") -> ShownModel:
    """Return what a tab shows when it opens another model, or the list: only transfers stay."""
    return ShownModel(model_id, running=shown.running, transfers=shown.transfers)


def _list_updates(view: ModelsView, before: ShownModel) -> list[Any]:
    card = gr.Markdown(view.card, visible=bool(view.card))
    return [_render(view), card, *_list_state_updates(view.shown, before)]


def _render(view: ModelsView) -> str:
    shown = escape(view.shown.model_id)
    return f'<div class="ts-models-view" data-shown="{shown}">{view.html}</div>'


def _list_state_updates(shown: ShownModel, before: ShownModel) -> list[Any]:
    """Return the updates of the state, of the transfers, and of their timer.

    The timer ticks while a transfer is in progress.
    """
    if shown == before:
        return [gr.skip()] * 3
    html = shown.transfers
    transfers = gr.skip() if html == before.transfers else gr.HTML(html, visible=bool(html))
    is_same = bool(shown.running) == bool(before.running)
    return [shown, transfers, gr.skip() if is_same else gr.Timer(active=bool(shown.running))]


def build_models_page(client: ApiClient, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client, first_views)
    gr.on(fn=page.show_models, outputs=page.outputs, **QUIET).then(None, js=READY_JS)
    page.timer.tick(page.update_models, page.shown, page.outputs, **QUIET)
    page.transfer_timer.tick(page.follow_transfers, page.shown, page.outputs, **QUIET)
    page.view.click(page.change_models, page.shown, page.outputs, **QUIET).then(None, js=DONE_JS)
