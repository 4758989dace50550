"""The page "Chat": talk to any model and see which one answered."""

from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency
from starlette.requests import Request

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.ui.chat.chat_layout import (
    MODEL_ID,
    ChatLayout,
    Updates,
    render_compare_link,
    show_continue,
)
from apps.ui.chat.conversation import Conversation, OpenChat
from apps.ui.chat.kept_conversation import (
    RESTORE_JS,
    STORAGE_KEY,
    STORE_JS,
    pack_conversation,
    unpack_conversation,
)
from apps.ui.chat.model_menu import (
    MAX_RUNS,
    MENU_SCRIPT,
    UNKNOWN_MODEL_NOTE,
    ModelMenu,
    describe_choice,
    list_chat_models,
    list_checkpoints,
    load_menu,
)
from apps.ui.chat.opening import Opened
from apps.ui.chat.questions import QuestionHandlers
from apps.ui.chat.suggestions import suggest_questions
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, LATEST_RAW, RAW, EventOptions
from apps.ui.frame.first_views import FirstViews
from apps.ui.notices import show_notice

NO_CHECKPOINTS = "The newest {} runs have no checkpoints that are not in the menu."

SHOW_MODEL_JS = """(name) => {
  const url = new URL(location.href);
  if (typeof name === "string" && name) url.searchParams.set("model", name);
  history.replaceState(null, "", url);
}"""

OWN_CONVERSATIONS = (
    "Each model has its own conversation. To return to the last one, choose its model again."
)


class _ModelHandlers:
    """The event handlers of the model menu."""

    def __init__(self, client: ApiClient, layout: ChatLayout) -> None:
        self._client = client
        self._ui = layout

    async def read_first(self, request: Request) -> Mapping[str, Any]:
        """Return the content of the model menu, for the document."""
        asked = request.query_params.get("model")
        menu = await load_menu(self._client, [asked] if asked else [])
        chosen = (asked if menu.has(asked) else None) if asked else menu.choose_first()
        return menu.describe_first(MODEL_ID, chosen, "" if asked else STORAGE_KEY)

    async def open_chat(self, chat: OpenChat, kept: Any, request: gr.Request) -> Updates:
        """Fill the model menu, and restore the conversation that the browser kept.

        The query parameter `model` selects a model. A conversation with another model is dropped.
        A question that was sent before waits for the end.
        """
        chat.opening.begin()
        try:
            return await self._open(chat, kept, request)
        finally:
            chat.opening.end(None)

    async def _open(self, chat: OpenChat, kept: Any, request: gr.Request) -> Updates:
        ui, asked = self._ui, request.query_params.get("model")
        restored = unpack_conversation(kept)
        wanted = asked or restored.asked_model
        try:
            menu = await load_menu(self._client, [wanted])
        except ApiClientError as exc:
            note = show_notice(describe_error(exc), "error")
            return {ui.note: note, ui.model: gr.Dropdown(interactive=True)}
        if menu.has(wanted):
            chosen: str | None = wanted
        else:
            chosen = menu.choose_first()
        note = show_notice(*await describe_choice(self._client, menu, chosen))
        if asked and not menu.has(asked):
            chosen, note = None, show_notice(UNKNOWN_MODEL_NOTE.format(asked), "error")
        chat.begin(restored if chosen and restored.asked_model == chosen else Conversation())
        question = chat.conversation.find_unanswered()
        chat.conversation = chat.conversation.drop_unanswered()
        chat.chosen_model = chosen
        chat.opening.end(Opened(chosen, menu))
        return {
            ui.chat: chat,
            ui.model: gr.Dropdown(choices=menu.list_choices(), value=chosen, interactive=True),
            ui.menu: menu,
            ui.note: note,
            ui.history: chat.conversation.to_chatbot(),
            ui.go_on: show_continue(chat.conversation),
            ui.compare: render_compare_link(menu, chosen),
            **({ui.bar.text: question} if question else {}),
        }

    async def choose(self, chat: OpenChat, menu: ModelMenu, name: Any, text: Any) -> Updates:
        """Open the conversation with the chosen model, and show the note about the model.

        It is the last one of this tab with this model, else a new one. A question sent right after
        the choice may already have opened a conversation with this model; that one is kept. A
        question without an answer is put back into the text field, unless the field has text.
        """
        ui = self._ui
        chat.chosen_model = name
        if chat.conversation.asked_model == name:
            return {ui.compare: render_compare_link(menu, name)}
        unanswered = chat.find_unanswered()
        if chat.switch_model(name if isinstance(name, str) else ""):
            gr.Info(OWN_CONVERSATIONS)
        return {
            ui.note: show_notice(*await describe_choice(self._client, menu, name)),
            ui.history: chat.conversation.to_chatbot(),
            ui.answered_by: "",
            ui.bar.text: unanswered if unanswered and not text else gr.skip(),
            ui.kept: pack_conversation(chat.conversation),
            ui.go_on: show_continue(chat.conversation),
            ui.compare: render_compare_link(menu, name),
        }

    async def suggest(self, menu: ModelMenu, name: Any) -> Any:
        """Suggest questions that suit the model."""
        questions = await suggest_questions(self._client, menu.find(name or ""))
        return gr.Chatbot(examples=[{"text": question} for question in questions])

    async def add_checkpoints(self, menu: ModelMenu) -> Updates:
        """Add the checkpoints of the newest runs to the menu."""
        try:
            found = await list_checkpoints(self._client)
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return {self._ui.menu: gr.skip()}
        more = menu.add(found)
        num_new = len(more.checkpoints) - len(menu.checkpoints)
        if num_new:
            added = "1 checkpoint was" if num_new == 1 else f"{num_new} checkpoints were"
            gr.Info(f"{added} added to the end of the menu.")
        else:
            gr.Info(NO_CHECKPOINTS.format(MAX_RUNS))
        return {self._ui.menu: more, self._ui.model: gr.Dropdown(choices=more.list_choices())}

    async def refresh_chat(self, menu: ModelMenu, name: Any) -> Updates:
        """Update the model menu if models were added or removed, or an alias moved.

        The selection is changed only if its model was removed: the user may have changed the
        selection since this handler started.
        """
        ui = self._ui
        try:
            current = menu.update(await list_chat_models(self._client))
        except ApiClientError:  # reported when a question is sent
            return {ui.menu: gr.skip()}
        choices = current.list_choices()
        if choices == menu.list_choices():
            return {ui.menu: gr.skip()}
        if name and not current.has(name):
            shown = gr.Dropdown(choices=choices, value=None, interactive=True)
        else:
            shown = gr.Dropdown(choices=choices, interactive=True)
        return {ui.model: shown, ui.menu: current}


def build_chat_page(client: ApiClient, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    ui = ChatLayout()
    page = _ModelHandlers(client, ui)
    first_views.add_without_frame("chat", MENU_SCRIPT, page.read_first)
    questions = QuestionHandlers(client, ui)
    buttons = ui.bar.buttons
    settings = ui.settings
    shown = [ui.chat, ui.model, ui.menu, ui.note, ui.history, ui.go_on, ui.compare, ui.bar.text]
    # Every function runs through Gradio's queue; routes that bypass it are closed (exposure.py).
    gr.on(fn=None, outputs=ui.kept, js=f"() => {RESTORE_JS}", api_visibility="private").then(
        page.open_chat, [ui.chat, ui.kept], shown, **RAW
    ).then(page.suggest, [ui.menu, ui.model], ui.history, **RAW)
    ui.timer.tick(page.refresh_chat, [ui.menu, ui.model], [ui.model, ui.menu], **RAW)
    ui.more.click(page.add_checkpoints, ui.menu, [ui.menu, ui.model], **RAW)
    ui.kept.change(None, ui.kept, js=STORE_JS)
    ui.program.update_after(settings.listen(), ui.chat, settings.panel)
    answering = _build_questions(ui, questions)
    stopping: EventOptions = {**RAW, "cancels": answering}
    choosing: EventOptions = {**LATEST_RAW, "cancels": answering}
    ui.bar.stop.click(questions.stop_answer, ui.chat, [ui.kept, *buttons], **stopping)
    ui.bar.clear.click(
        questions.empty_conversation,
        ui.chat,
        [ui.history, ui.answered_by, ui.kept, ui.go_on, *buttons],
        **stopping,
    )
    chosen = ui.model.input(
        page.choose,
        [ui.chat, ui.menu, ui.model, ui.bar.text],
        [ui.note, ui.history, ui.answered_by, ui.bar.text, ui.kept, ui.go_on, ui.compare],
        **choosing,
    )
    chosen.then(None, ui.model, js=SHOW_MODEL_JS)
    chosen.then(questions.free_buttons, ui.chat, [ui.kept, ui.go_on, *buttons], **LATEST).then(
        page.suggest, [ui.menu, ui.model], ui.history, **LATEST_RAW
    )
    ui.program.listen(ui.chat, settings.panel)


def _build_questions(ui: ChatLayout, page: QuestionHandlers) -> list[Dependency]:
    """Build the events that ask a question; return those that stream an answer."""
    settings = ui.settings.panel
    # The chat is an output so that each question restarts the hour after which Gradio deletes it.
    asked = [ui.chat, ui.history, ui.bar.text, ui.model, ui.menu, ui.note, ui.kept, ui.go_on]
    outputs = [*asked, settings, *ui.bar.buttons]
    context = [ui.chat, ui.menu, ui.model, settings]
    events = [
        gr.on(
            ui.bar.sent,
            page.ask,
            [ui.bar.text, *context],
            outputs,
            **LATEST_RAW,
        ),
        ui.history.example_select(page.ask_example, context, outputs, **RAW),
        ui.history.retry(page.ask_again, context, outputs, **RAW),
        ui.history.edit(page.ask_edited, context, outputs, **RAW),
        ui.go_on.click(page.continue_answer, [ui.chat, settings], outputs, **RAW),
    ]
    answering: list[Dependency] = []
    for event in events:
        step = event.then(
            page.respond,
            ui.chat,
            [ui.chat, ui.history, ui.answered_by, ui.bar.text, ui.note],
            **LATEST_RAW,
        )
        freed = step.then(
            page.free_buttons, ui.chat, [ui.kept, ui.go_on, *ui.bar.buttons], **LATEST
        )
        ui.program.update_after(freed, ui.chat, settings)
        answering.append(step)
    return answering
