"""Questions of the page "Chat" and their streamed answers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.model_resources import Model
from apps.ui import markup
from apps.ui.chat.chat_layout import ChatLayout, Updates, show_continue
from apps.ui.chat.code_panel import find_request
from apps.ui.chat.conversation import Conversation, OpenChat, Question, Turn, answer
from apps.ui.chat.kept_conversation import pack_conversation
from apps.ui.chat.model_menu import (
    UNKNOWN_MODEL_NOTE,
    ModelMenu,
    describe_choice,
    list_chat_models,
)
from apps.ui.chat.sampling_settings import check_settings
from apps.ui.error_messages import describe_error
from apps.ui.notices import show_notice

MOVED_NOTE = "{} points to {} now; this is a new conversation."
BUSY_WARNING = "The previous question is still being answered: wait for the answer, or press Stop."
CHOSEN_WARNING = "Another model was chosen before the question was sent: send the question again."
MAX_QUESTION_CHARACTERS = 20_000
LONG_WARNING = "The question has {:,} characters; expected at most {:,}. Shorten it."


class QuestionRefusedError(Exception):
    """A question is not sent, for a reason that the visitor is shown."""


def find_conversation(
    conversation: Conversation, name: str, model: Model
) -> tuple[Conversation, str]:
    """Find the conversation that a question to a model belongs to.

    It is a new one if the name differs from the previous one, or if the alias has moved to a model
    that did not give the previous answers. Return it with a note about that, which may be empty.
    """
    kept = conversation.drop_unanswered()
    if kept.asked_model == name and model.id in (kept.pointed_id, kept.model_id):
        return replace(kept, pointed_id=model.id), ""
    note = MOVED_NOTE.format(name, model.id) if kept.asked_model == name and kept.turns else ""
    return Conversation(asked_model=name, pointed_id=model.id), note


def find_question(conversation: Conversation, place: Any) -> int | None:
    """Return the index of a question as a browser sent it; None if it is not one."""
    questions = [n for n, turn in enumerate(conversation.turns) if turn.role == "user"]
    return place if type(place) is int and place in questions else None


class QuestionHandlers:
    """The event handlers of questions and answers."""

    def __init__(self, client: ApiClient, layout: ChatLayout) -> None:
        self._client = client
        self._ui = layout

    async def ask(
        self, text: Any, chat: OpenChat, menu: ModelMenu, name: Any, values: Any
    ) -> Updates:
        """Add the typed question to the conversation; empty text changes nothing.

        The models are listed again, so that the menu shows which model the chosen alias points to.
        A refused question stays in the text field.
        """
        question = text.strip() if isinstance(text, str) else ""
        if not question:
            return {self._ui.chat: gr.skip()}
        return await self._try_ask(question, None, (chat, menu, name), values)

    async def ask_example(
        self, event: gr.SelectData, chat: OpenChat, menu: ModelMenu, name: Any, values: Any
    ) -> Updates:
        """Add a suggested question to the conversation."""
        value = event.value if isinstance(event.value, dict) else {}
        return await self.ask(value.get("text"), chat, menu, name, values)

    async def ask_again(
        self, event: gr.RetryData, chat: OpenChat, menu: ModelMenu, name: Any, values: Any
    ) -> Updates:
        """Ask the last question again, for another answer."""
        del event  # only the last answer has this button
        request = find_request(chat.conversation)
        if request is None:
            return {self._ui.chat: gr.skip()}
        question = request.turns[-1].text
        place = len(request.turns) - 1
        return await self._try_ask(question, place, (chat, menu, name), values)

    async def ask_edited(
        self, event: gr.EditData, chat: OpenChat, menu: ModelMenu, name: Any, values: Any
    ) -> Updates:
        """Ask a changed question, and drop all that followed it."""
        place, text = find_question(chat.conversation, event.index), event.value
        if place is None or not isinstance(text, str) or not text.strip():
            return {self._ui.history: chat.conversation.to_chatbot()}
        return await self._try_ask(text.strip(), place, (chat, menu, name), values)

    async def _try_ask(
        self,
        question: str,
        place: int | None,
        context: tuple[OpenChat, ModelMenu, Any],
        values: Any,
    ) -> Updates:
        """Ask a question in place of the message `place`, or after the last message.

        If it is refused, the reason is shown, and the conversation stays as it is.
        """
        ui, (chat, menu, name) = self._ui, context
        # The question may have been sent before the browser had the answer of `open_chat`.
        waits = name in (None, "") or chat.opening.is_running
        opened = await chat.opening.wait() if waits else None
        if opened and chat.chosen_model == opened.model and name in (None, "", opened.model):
            name, menu = opened
        settings, faults = check_settings(values)
        shown: Updates = {} if place is None else {ui.history: chat.conversation.to_chatbot()}
        if settings is None:
            gr.Warning(escape(" ".join(faults.values())))
            return {**shown, **ui.settings.show_faults(values, faults)}
        try:
            current = await self._list_models(question, chat, menu, name)
        except QuestionRefusedError as exc:
            gr.Warning(escape(str(exc)))
            return {ui.chat: gr.skip(), **shown}
        model = current.find(name)
        assert model is not None, "checked by _list_models"
        is_typed = place is None
        if chat.conversation.asked_model != name:  # the choice of the model is processed later
            chat.switch_model(name)
            place = None
        before = chat.conversation.drop_unanswered()
        earlier = before if place is None else before.cut(place)
        found, moved = find_conversation(earlier, name, model)
        asked = found.add(Turn("user", question))
        returned = question if place is None or before.turns[place].text != question else ""
        chat.ask(Question(asked, settings, before, returned))
        return {
            ui.chat: chat,
            ui.history: asked.to_chatbot(),
            **({ui.bar.text: ""} if is_typed else {}),
            ui.model: gr.Dropdown(choices=current.list_choices(), interactive=True),
            ui.menu: current,
            ui.note: await self._note(moved, current, name),
            ui.kept: pack_conversation(asked),
            ui.go_on: gr.Button(visible=False),
            **ui.bar.show_buttons(busy=True),
        }

    async def _list_models(
        self, question: str, chat: OpenChat, menu: ModelMenu, name: Any
    ) -> ModelMenu:
        """Return the current models; raises `QuestionRefusedError` with the reason."""
        if len(question) > MAX_QUESTION_CHARACTERS:
            raise QuestionRefusedError(LONG_WARNING.format(len(question), MAX_QUESTION_CHARACTERS))
        if not name:
            raise QuestionRefusedError("Choose a model first.")
        chosen_before = chat.chosen_model
        try:
            current = menu.update(await list_chat_models(self._client))
        except ApiClientError as exc:
            raise QuestionRefusedError(describe_error(exc)) from exc
        if not isinstance(name, str) or not current.has(name):
            raise QuestionRefusedError(UNKNOWN_MODEL_NOTE.format(name))
        if chat.is_busy:
            raise QuestionRefusedError(BUSY_WARNING)
        if chat.chosen_model not in (chosen_before, name):
            raise QuestionRefusedError(CHOSEN_WARNING)
        return current

    async def continue_answer(self, chat: OpenChat, values: Any) -> Updates:
        """Continue the last answer, which ended at the limit on tokens."""
        ui = self._ui
        settings, faults = check_settings(values)
        if settings is None or chat.is_busy or chat.conversation.find_cut_answer() is None:
            if faults:
                gr.Warning(escape(" ".join(faults.values())))
            return {ui.chat: gr.skip(), **ui.settings.show_faults(values, faults)}
        before = chat.conversation
        chat.ask(Question(replace(before), settings, before, continues=True))
        return {
            ui.chat: chat,
            ui.go_on: gr.Button(visible=False),
            **ui.bar.show_buttons(busy=True),
        }

    async def respond(self, chat: OpenChat) -> AsyncGenerator[Updates, None]:
        """Stream the answer to the question of `ask` into the conversation.

        A refused question is removed from the conversation and put back into the text field. An
        answer that was stopped, or whose conversation was replaced, makes no further changes.
        """
        ui, question = self._ui, chat.begin_answer()
        if question is None:
            yield {ui.chat: gr.skip()}  # without a value, Gradio would clear the outputs
            return
        current = question.conversation
        try:
            async with aclosing(answer(self._client, question)) as steps:
                async for step in steps:
                    if not chat.update_answer(current, step.conversation):
                        return
                    current = step.conversation
                    yield {
                        ui.chat: chat,
                        ui.history: current.to_chatbot(),
                        ui.answered_by: f'<p class="ts-muted">{escape(step.line)}</p>',
                        **({ui.note: show_notice(step.note)} if step.note else {}),
                    }
        except ApiClientError as exc:
            yield self._end_with_error(chat, question, current, describe_error(exc))
        finally:
            chat.end_answer(current)

    def _end_with_error(
        self, chat: OpenChat, question: Question, current: Conversation, message: str
    ) -> Updates:
        """End an answer with an error; without an answer, return to what was before it."""
        ui, has_answer = self._ui, current is not question.conversation
        kept = current if has_answer else question.before
        if not chat.update_answer(current, kept):
            return {ui.chat: gr.skip()}
        chat.end_answer(kept)
        gr.Warning(escape(message))
        return {
            ui.chat: chat,
            ui.history: kept.to_chatbot(),
            ui.answered_by: markup.render_notice(message, "error"),
            **({ui.bar.text: question.text} if question.text and not has_answer else {}),
        }

    async def stop_answer(self, chat: OpenChat) -> Updates:
        """Stop the answer, keep its text so far, and show Send again."""
        chat.stop()
        kept = pack_conversation(chat.conversation)
        return {self._ui.kept: kept, **self._ui.bar.show_buttons(busy=False)}

    async def empty_conversation(self, chat: OpenChat) -> Updates:
        """Start a new conversation."""
        ui = self._ui
        chat.begin(Conversation())
        return {
            ui.history: [],
            ui.answered_by: "",
            ui.kept: "",
            ui.go_on: gr.Button(visible=False),
            **ui.bar.show_buttons(busy=False),
        }

    async def free_buttons(self, chat: OpenChat) -> Updates:
        """Show Send again unless a question is being answered; the browser keeps the answer."""
        ui = self._ui
        if chat.is_busy:
            return ui.bar.show_buttons(busy=True)
        return {
            ui.kept: pack_conversation(chat.conversation),
            ui.go_on: show_continue(chat.conversation),
            **ui.bar.show_buttons(busy=False),
        }

    async def _note(self, moved: str, menu: ModelMenu, name: str) -> Any:
        """Show that an alias has moved, else the note about the model."""
        return (
            show_notice(moved)
            if moved
            else show_notice(*await describe_choice(self._client, menu, name))
        )
