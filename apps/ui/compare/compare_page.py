"""The page "Compare": one prompt to two to four models, side by side."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency
from starlette.requests import Request

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.ui import markup
from apps.ui.chat.chat_layout import Updates
from apps.ui.chat.conversation import Question, Turn
from apps.ui.chat.model_menu import (
    LATEST_ALIAS,
    MENU_SCRIPT,
    ModelMenu,
    describe_choice,
    list_chat_models,
    load_menu,
)
from apps.ui.chat.questions import (
    BUSY_WARNING,
    LONG_WARNING,
    MAX_QUESTION_CHARACTERS,
    find_conversation,
)
from apps.ui.chat.sampling_settings import AnswerSettings, check_settings
from apps.ui.chat.suggestions import suggest_questions
from apps.ui.compare.compare_layout import MODELS_ID, CompareLayout
from apps.ui.compare.comparison import MAX_COLUMNS, Comparison
from apps.ui.compare.merged_answers import ColumnStep, MergedAnswers
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, LATEST_RAW, RAW, EventOptions
from apps.ui.frame.first_views import FirstViews
from apps.ui.notices import show_notice

FEW_MODELS_NOTE = "Choose two to four models."
UNKNOWN_MODELS_NOTE = "There is no model {}; choose others from the menu."
ANSWERING = '<p class="ts-muted">Answering…</p>'

SHOW_MODELS_JS = """(names) => {
  const url = new URL(location.href);
  if (Array.isArray(names)) url.searchParams.set("models", names.join(","));
  history.replaceState(null, "", url);
}"""


def choose_default(menu: ModelMenu) -> list[str]:
    """Return the names to compare if none are given: a base model, and what `latest` names."""
    base = next((model.id for model in menu.models if model.base), None)
    latest = menu.find(LATEST_ALIAS)
    names = [base, LATEST_ALIAS if latest and latest.id != base else None]
    return [name for name in names if name]


def _read_asked(query: Mapping[str, str]) -> list[str]:
    return [name for name in query.get("models", "").split(",") if name]


def _choose_first(menu: ModelMenu, asked: Sequence[str]) -> list[str]:
    """Return the names to compare first: those that are asked for, as far as they exist."""
    known = dict.fromkeys(name for name in asked if menu.has(name))
    return list(known)[:MAX_COLUMNS] if asked else choose_default(menu)


class _CompareHandlers:
    """The event handlers of the page."""

    def __init__(self, client: ApiClient, layout: CompareLayout) -> None:
        self._client = client
        self._ui = layout

    async def read_first(self, request: Request) -> Mapping[str, Any]:
        """Return the content of the menu of models, for the document."""
        asked = _read_asked(request.query_params)
        menu = await load_menu(self._client, asked)
        return menu.describe_first(MODELS_ID, _choose_first(menu, asked))

    async def open_compare(self, comparison: Comparison, request: gr.Request) -> Updates:
        """Show the models that the query parameter `models` names, separated by commas."""
        ui = self._ui
        asked = _read_asked(request.query_params)
        try:
            menu = await load_menu(self._client, asked)
        except ApiClientError as exc:
            note = show_notice(describe_error(exc), "error")
            return {ui.note: note, ui.models: gr.Dropdown(interactive=True)}
        unknown = [name for name in asked if not menu.has(name)]
        comparison.choose(_choose_first(menu, asked))
        names = comparison.names
        return {
            ui.comparison: comparison,
            ui.menu: menu,
            ui.models: gr.Dropdown(choices=menu.list_choices(), value=names, interactive=True),
            ui.note: await self._note_models(menu, names, unknown),
            **ui.show_columns(comparison, menu),
        }

    async def choose_models(self, comparison: Comparison, menu: ModelMenu, names: Any) -> Updates:
        """Show the columns of the chosen models; those that stay keep their conversations."""
        ui = self._ui
        comparison.choose(read_names(names))
        freed: Updates = {ui.comparison: comparison, **ui.bar.show_buttons(busy=False)}
        loaded: Updates = {}
        if not menu.models:  # the page could not be opened
            try:
                menu = await load_menu(self._client, comparison.names)
            except ApiClientError as exc:
                return {ui.note: show_notice(describe_error(exc), "error"), **freed}
            loaded = self._show_menu(menu)
        return {
            **loaded,
            ui.note: await self._note_models(menu, comparison.names),
            **ui.show_columns(comparison, menu),
            **freed,
        }

    async def suggest_all(self, comparison: Comparison, menu: ModelMenu) -> Updates:
        """Suggest questions from the data of the first fine-tuned model, else for the base."""
        models = [model for name in comparison.names if (model := menu.find(name))]
        models.sort(key=lambda model: model.run_id is None)
        questions = await suggest_questions(self._client, models[0] if models else None)
        examples: Any = [{"text": question} for question in questions]
        return {column.history: gr.Chatbot(examples=examples) for column in self._ui.columns}

    async def ask_all(
        self, text: Any, comparison: Comparison, menu: ModelMenu, values: Any, names: Any
    ) -> Updates:
        """Add the typed question to all conversations; a refused one stays in the text field.

        `names` are those in the menu, which the document has: the page may not be opened yet.
        """
        ui = self._ui
        if not comparison.names:
            comparison.choose(read_names(names))
        question = text.strip() if isinstance(text, str) else ""
        if not question:
            return {ui.comparison: gr.skip()}
        settings, faults = check_settings(values)
        if settings is None:
            gr.Warning(escape(" ".join(faults.values())))
            return dict(ui.settings.show_faults(values, faults))
        note: Updates = {}
        try:
            if menu.models:
                current = menu.update(await list_chat_models(self._client))
            else:  # the page is not opened yet, or could not be
                current = await load_menu(self._client, comparison.names)
                note = {ui.note: await self._note_models(current, comparison.names)}
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return {ui.comparison: gr.skip()}
        if reason := find_refusal(question, comparison):
            gr.Warning(escape(reason))
            return {ui.comparison: gr.skip()}
        ask_models(comparison, current, question, settings)
        busy = comparison.is_busy
        return {
            **ui.show_columns(comparison, current),
            **self._show_menu(current),
            **note,
            ui.comparison: comparison,
            ui.bar.text: "" if busy else gr.skip(),
            **ui.bar.show_buttons(busy=busy),
        }

    async def ask_all_example(
        self, event: gr.SelectData, comparison: Comparison, menu: ModelMenu, values: Any
    ) -> Updates:
        """Add a suggested question to all conversations."""
        value = event.value if isinstance(event.value, dict) else {}
        return await self.ask_all(value.get("text"), comparison, menu, values, None)

    async def respond_all(self, comparison: Comparison) -> AsyncGenerator[Updates, None]:
        """Stream the answers of all models into their columns.

        A model that fails shows the reason in its column; the others continue.
        """
        ui, questions = self._ui, comparison.begin_answers()
        if not questions:
            yield {ui.comparison: gr.skip()}
            return
        merged = comparison.running = MergedAnswers(self._client, questions)
        current = {name: question.conversation for name, question in questions.items()}
        try:
            async with aclosing(merged.follow()) as found:
                async for steps in found:
                    shown: Updates = {ui.comparison: comparison}
                    for name, step in steps.items():
                        chat, before = comparison.chats.get(name), current[name]
                        is_empty = step.conversation is questions[name].conversation
                        after = questions[name].before if is_empty else step.conversation
                        if chat is not None and chat.update_answer(before, after):
                            current[name] = after
                            shown |= self._show_step(comparison, name, step)
                    yield shown
            if all(current[name] is question.before for name, question in questions.items()):
                yield {ui.bar.text: next(iter(questions.values())).text}
        finally:
            comparison.end_answers(current)

    def _show_step(self, comparison: Comparison, name: str, step: ColumnStep) -> Updates:
        """Show a conversation with the answer so far, and its status."""
        column, conversation = self._ui.columns[comparison.names.index(name)], step.conversation
        if step.error or step.note:
            kind = "error" if step.error else "info"
            comparison.statuses[name] = markup.render_notice(step.error or step.note, kind)
        elif conversation.turns[-1].facts and comparison.statuses.get(name) == ANSWERING:
            comparison.statuses[name] = ""
        return {
            column.history: comparison.chats[name].conversation.to_chatbot(),
            column.status: comparison.statuses.get(name, ""),
        }

    async def free_compare(self, comparison: Comparison) -> Updates:
        """Show Send again, unless a question is being answered."""
        return self._ui.bar.show_buttons(busy=comparison.is_busy)

    async def stop_all(self, comparison: Comparison) -> Updates:
        """Stop all answers, keep their texts so far, and show Send again."""
        comparison.stop()
        comparison.statuses.clear()
        statuses: Updates = {column.status: "" for column in self._ui.columns}
        return {**statuses, **self._ui.bar.show_buttons(busy=False)}

    async def empty_all(self, comparison: Comparison, menu: ModelMenu) -> Updates:
        """Start new conversations with all models."""
        comparison.clear()
        return {
            **self._ui.show_columns(comparison, menu),
            **self._ui.bar.show_buttons(busy=False),
        }

    def _show_menu(self, menu: ModelMenu) -> Updates:
        choices = menu.list_choices()
        return {self._ui.menu: menu, self._ui.models: gr.Dropdown(choices, interactive=True)}

    async def _note_models(
        self, menu: ModelMenu, names: Sequence[str], unknown: Sequence[str] = ()
    ) -> Any:
        """Return the note about the chosen models."""
        if unknown:
            quoted = ", ".join(map(repr, unknown))[:200]
            return show_notice(UNKNOWN_MODELS_NOTE.format(quoted), "error")
        if len(names) < 2:
            return show_notice(FEW_MODELS_NOTE)
        notes = [await describe_choice(self._client, menu, name) for name in names]
        checkpoints = [
            note for name, note in zip(names, notes, strict=True) if menu.find_checkpoint(name)
        ]
        if not checkpoints:
            return show_notice("")
        return show_notice("\n".join(note.message for note in checkpoints), checkpoints[0].kind)


def read_names(names: Any) -> list[str]:
    """Return the different names among the values of the menu, as the browser sent them."""
    values = names if isinstance(names, list) else []
    return list(dict.fromkeys(name for name in values if isinstance(name, str)))[:MAX_COLUMNS]


def find_refusal(question: str, comparison: Comparison) -> str:
    """Return why a question is not sent; empty if it is."""
    if len(question) > MAX_QUESTION_CHARACTERS:
        return LONG_WARNING.format(len(question), MAX_QUESTION_CHARACTERS)
    if not comparison.names:
        return FEW_MODELS_NOTE
    return BUSY_WARNING if comparison.is_busy else ""


def ask_models(
    comparison: Comparison, menu: ModelMenu, question: str, settings: AnswerSettings
) -> None:
    """Add a question to the conversation of each model that exists, and set its status."""
    for name, chat in comparison.chats.items():
        model = menu.find(name)
        if model is None:
            comparison.statuses[name] = ""  # the head of the column says it
            continue
        before = chat.conversation.drop_unanswered()
        found, moved = find_conversation(before, name, model)
        chat.ask(Question(found.add(Turn("user", question)), settings, before, question))
        comparison.statuses[name] = markup.render_notice(moved) if moved else ANSWERING


def build_compare_page(client: ApiClient, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    ui = CompareLayout()
    page = _CompareHandlers(client, ui)
    first_views.add_without_frame("compare", MENU_SCRIPT, page.read_first)
    settings = ui.settings
    buttons = ui.bar.buttons
    # The state is an output so that each question restarts the hour after which Gradio deletes it.
    shown = [ui.comparison, ui.menu, ui.models, ui.note, *ui.column_outputs]
    histories = [column.history for column in ui.columns]
    gr.on(fn=page.open_compare, inputs=ui.comparison, outputs=shown, **RAW).then(
        page.suggest_all, [ui.comparison, ui.menu], histories, **RAW
    )
    settings.listen()
    context = [ui.comparison, ui.menu, settings.panel]
    outputs = [*shown, ui.bar.text, settings.panel, *buttons]
    answering: list[Dependency] = []
    for event in (
        gr.on(
            ui.bar.sent,
            page.ask_all,
            [ui.bar.text, *context, ui.models],
            outputs,
            **LATEST_RAW,
        ),
        gr.on(
            [history.example_select for history in histories],
            page.ask_all_example,
            context,
            outputs,
            **RAW,
        ),
    ):
        step = event.then(
            page.respond_all,
            ui.comparison,
            [ui.comparison, *ui.column_outputs, ui.bar.text],
            **LATEST_RAW,
        )
        step.then(page.free_compare, ui.comparison, buttons, **LATEST)
        answering.append(step)
    stopping: EventOptions = {**RAW, "cancels": answering}
    choosing: EventOptions = {**LATEST_RAW, "cancels": answering}
    ui.bar.stop.click(page.stop_all, ui.comparison, [*ui.column_outputs, *buttons], **stopping)
    ui.bar.clear.click(
        page.empty_all, [ui.comparison, ui.menu], [*ui.column_outputs, *buttons], **stopping
    )
    chosen = ui.models.input(
        page.choose_models,
        [ui.comparison, ui.menu, ui.models],
        [*shown, *buttons],
        **choosing,
    )
    chosen.then(None, ui.models, js=SHOW_MODELS_JS)
    chosen.then(page.suggest_all, [ui.comparison, ui.menu], histories, **LATEST_RAW)
