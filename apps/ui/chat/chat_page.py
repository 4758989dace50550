"""The page "Chat": talk to any model and see which one answered."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from html import escape
from math import isfinite
from typing import Any, Literal, TypedDict

import gradio as gr
from gradio.events import Dependency

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import Model
from apps.ui import markup
from apps.ui.chat.conversation import Conversation, OpenChat, Turn, answer
from apps.ui.error_messages import describe_error

LATEST_ALIAS = "latest"
TASK = "causal_lm"
REFRESH_INTERVAL_S = 10.0
UNKNOWN_MODEL_NOTE = "There is no model {!r}; choose one from the menu."
MOVED_NOTE = "{} points to {} now; this is a new conversation."
BUSY_WARNING = "The previous question is still being answered: wait for the answer, or press Stop."
CHOSEN_WARNING = "Another model was chosen before the question was sent: send the question again."
TEMPERATURE_LABEL = "Temperature"
MAX_TOKENS_LABEL = "Maximum number of tokens"
MAX_QUOTED_CHARACTERS = 40
MAX_QUESTION_CHARACTERS = 20_000
LONG_WARNING = "The question has {:,} characters; expected at most {:,}. Shorten it."
QUESTIONS = (
    "When does the workshop open?",
    "Whom do I ask for holiday?",
    "What is the capital of France?",
    "What is two plus three?",
)
DEMONSTRATION_NOTE = (
    "This is the small demonstration model before any fine-tune: it knows almost nothing, and "
    "nothing about your data. Fine-tune it, then ask again."
)


async def list_chat_models(client: ApiClient) -> list[Model]:
    """List the models that generate text; raises `ApiClientError`."""
    return [model for model in await client.models.list_all() if model.task == TASK]


def list_choices(models: Sequence[Model]) -> list[tuple[str, str]]:
    """List the entries of the model menu: `latest` with the model it points to, then all models."""
    latest = [model for model in models if LATEST_ALIAS in model.aliases]
    choices = [(f"{LATEST_ALIAS} → {model.id}", LATEST_ALIAS) for model in latest]
    return choices + [
        (f"{model.id} (base)" if model.base else model.id, model.id) for model in models
    ]


def find_model(models: Sequence[Model], name: str) -> Model | None:
    """Return the model with an id or alias, or None."""
    return next((model for model in models if name == model.id or name in model.aliases), None)


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


def read_number(label: str, value: Any) -> float:
    """Read a number as the browser sends it; the API checks the range.

    Raises `ValueError` if the value is not a finite number.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    raise ValueError(f"{label} is {_quote_value(value)}: enter a number.")


def read_whole_number(label: str, value: Any) -> int:
    """Read an integer as the browser sends it.

    Raises `ValueError` as `read_number` does, and for a number with a fraction.
    """
    number = read_number(label, value)
    if number % 1:
        raise ValueError(f"{label} is {_quote_value(value)}: enter a whole number.")
    return int(number)


def _quote_value(value: Any) -> str:
    return "empty" if value in (None, "") else repr(value)[:MAX_QUOTED_CHARACTERS]


class EventOptions(TypedDict, total=False):
    """Options of Gradio's events."""

    show_progress: Literal["hidden"]
    api_visibility: Literal["private"]
    preprocess: bool
    cancels: Any  # Gradio annotates dictionaries, of which `Dependency` is a subclass


class _Page:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.chat: gr.State = gr.State(OpenChat())
        self.models: gr.State = gr.State(())  # the models that the menu shows
        self.timer = gr.Timer(REFRESH_INTERVAL_S)
        self.model = gr.Dropdown(label="Model", elem_id="chat-model", filterable=False)
        self.note = gr.HTML(elem_id="chat-note", visible=False)
        self.history = gr.Chatbot(
            elem_id="chat-history",
            show_label=False,
            height="calc(100vh - 345px)",
            min_height=260,
            buttons=[],
            feedback_options=None,
            latex_delimiters=[],
            layout="bubble",
            group_consecutive_messages=False,
            examples=[{"text": question} for question in QUESTIONS],
        )
        self.answered_by = gr.HTML(elem_id="chat-answered-by")
        with gr.Row(elem_id="chat-bar"):
            self.text = gr.Textbox(
                elem_id="chat-input",
                placeholder="Ask something…",
                show_label=False,
                container=False,
                scale=6,
                min_width=110,
                max_lines=6,
                autofocus=True,
            )
            self.send = gr.Button(
                "Send", variant="primary", elem_id="chat-send", scale=1, min_width=72
            )
            self.stop = gr.Button("Stop", elem_id="chat-stop", scale=1, min_width=72, visible=False)
            self.clear = gr.Button("Clear", elem_id="chat-clear", scale=1, min_width=72)
        with gr.Accordion("Settings", open=False):
            self.temperature = gr.Slider(
                0,
                2,
                0,
                step=0.1,
                label=TEMPERATURE_LABEL,
                info="0 always selects the most likely token.",
            )
            self.max_tokens = gr.Slider(8, 1024, 128, step=8, label=MAX_TOKENS_LABEL)

    async def open(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Fill the model menu; the query parameter `model` selects a model."""
        try:
            models = await list_chat_models(self._client)
        except ApiClientError as exc:
            return gr.skip(), show_note(describe_error(exc), "error"), gr.skip()
        choices = list_choices(models)
        offered = [value for _, value in choices]
        asked = request.query_params.get("model")
        if asked is None:
            chosen = next(iter(offered), None)
            note = note_model(find_model(models, chosen or ""))
        elif asked in offered:
            chosen, note = asked, note_model(find_model(models, asked))
        else:
            chosen, note = None, show_note(UNKNOWN_MODEL_NOTE.format(asked), "error")
        return gr.Dropdown(choices=choices, value=chosen), note, tuple(models)

    async def choose(
        self, chat: OpenChat, models: Sequence[Model], name: Any, text: Any
    ) -> tuple[Any, ...]:
        """Start a new conversation with the chosen model, and show the note about the model.

        A question sent right after the choice may already have opened a conversation with this
        model; that conversation is kept. A question without an answer is put back into the text
        field, unless the field has text.
        """
        chat.chosen_model = name
        if chat.conversation.asked_model == name:
            return skip_outputs(4)
        unanswered = chat.conversation.find_unanswered()
        chat.begin(Conversation(asked_model=name))
        returned = unanswered if unanswered and not text else gr.skip()
        return note_model(find_model(models, name)), [], "", returned

    async def refresh(self, shown: Sequence[Model], name: Any) -> tuple[Any, Any]:
        """Update the model menu if models were added or removed, or an alias moved.

        The selection is changed only if its model was removed: the user may have changed the
        selection since this handler started.
        """
        try:
            models = await list_chat_models(self._client)
        except ApiClientError:  # reported when a question is sent
            return skip_outputs(2)
        choices = list_choices(models)
        if choices == list_choices(shown):
            return skip_outputs(2)
        if name and all(name != value for _, value in choices):
            return gr.Dropdown(choices=choices, value=None), tuple(models)
        return gr.Dropdown(choices=choices), tuple(models)

    async def ask(self, text: Any, chat: OpenChat, name: Any) -> tuple[Any, ...]:
        """Add the typed question to the conversation; empty text changes nothing.

        The models are listed again, so that the menu shows which model the chosen alias points to.
        A refused question stays in the text field.
        """
        question = text.strip() if isinstance(text, str) else ""
        if not question:
            return skip_outputs(8)
        if len(question) > MAX_QUESTION_CHARACTERS:
            return refuse_question(LONG_WARNING.format(len(question), MAX_QUESTION_CHARACTERS))
        if not name:
            return refuse_question("Choose a model first.")
        chosen_before = chat.chosen_model
        try:
            models = await list_chat_models(self._client)
        except ApiClientError as exc:
            return refuse_question(describe_error(exc))
        model = find_model(models, name)
        if model is None:
            return refuse_question(UNKNOWN_MODEL_NOTE.format(name))
        if chat.is_busy:
            return refuse_question(BUSY_WARNING)
        if chat.chosen_model not in (chosen_before, name):
            return refuse_question(CHOSEN_WARNING)
        found, moved = find_conversation(chat.conversation, name, model)
        asked = found.add(Turn("user", question))
        chat.ask(asked)
        note = show_note(moved) if moved else note_model(model)
        menu = gr.Dropdown(choices=list_choices(models))
        buttons = show_buttons(busy=True)
        return chat, asked.to_chatbot(), "", menu, tuple(models), note, *buttons

    async def ask_example(self, chat: OpenChat, name: Any, event: gr.SelectData) -> tuple[Any, ...]:
        """Add an example question to the conversation."""
        value = event.value if isinstance(event.value, dict) else {}
        return await self.ask(value.get("text"), chat, name)

    async def respond(
        self, chat: OpenChat, temperature: Any, max_tokens: Any
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """Stream the answer to the question of `ask` into the conversation.

        A refused question is removed from the conversation and put back into the text field. An
        answer that was stopped, or whose conversation was replaced, makes no further changes.
        """
        asked = chat.begin_answer()
        if asked is None:
            yield skip_outputs(5)  # without a value, Gradio would clear the outputs
            return
        try:
            heat = read_number(TEMPERATURE_LABEL, temperature)
            limit = read_whole_number(MAX_TOKENS_LABEL, max_tokens)
        except ValueError as exc:
            yield end_with_error(chat, asked, asked, str(exc))
            return
        current = asked
        try:
            async with aclosing(answer(self._client, asked, heat, limit)) as steps:
                async for step in steps:
                    if not chat.update_answer(current, step.conversation):
                        return
                    current = step.conversation
                    line = f'<p class="ts-muted">{escape(step.line)}</p>'
                    note = show_note(step.note) if step.note else gr.skip()
                    yield chat, current.to_chatbot(), line, gr.skip(), note
        except ApiClientError as exc:
            yield end_with_error(chat, asked, current, describe_error(exc))
        finally:
            chat.end_answer(current)

    async def stop_answer(self, chat: OpenChat) -> tuple[Any, ...]:
        """Stop the answer, keep its text so far, and show Send again."""
        chat.stop()
        return show_buttons(busy=False)

    async def empty_conversation(self, chat: OpenChat) -> tuple[Any, ...]:
        """Start a new conversation."""
        chat.begin(Conversation())
        return [], "", *show_buttons(busy=False)

    async def free_buttons(self, chat: OpenChat) -> tuple[Any, ...]:
        """Show Send again, unless a question is being answered."""
        return show_buttons(busy=chat.is_busy)


def note_model(model: Model | None) -> Any:
    """Return the note for a model; it is empty except for the demonstration base model."""
    is_bare = model is not None and model.base and model.demonstration
    return show_note(DEMONSTRATION_NOTE if is_bare else "")


def show_note(message: str, kind: str = "info") -> Any:
    """Show a notice, or hide it if the message is empty."""
    return gr.HTML(markup.render_notice(message, kind), visible=bool(message))


def show_buttons(*, busy: bool) -> tuple[Any, Any]:
    """Return the updates of Send and Stop: Stop replaces Send while an answer is streamed."""
    return gr.Button(visible=not busy), gr.Button(visible=busy)


def refuse_question(message: str) -> tuple[Any, ...]:
    """Show why a question is not sent, and leave the outputs unchanged."""
    gr.Warning(escape(message))
    return skip_outputs(8)


def end_with_error(
    chat: OpenChat, asked: Conversation, current: Conversation, message: str
) -> tuple[Any, ...]:
    """End an answer with an error; put a question without an answer back into the text field."""
    kept = current.drop_unanswered()
    if not chat.update_answer(current, kept):
        return skip_outputs(5)
    chat.end_answer(kept)
    gr.Warning(escape(message))
    question = gr.skip() if kept is current else asked.find_unanswered()
    return chat, kept.to_chatbot(), markup.render_notice(message, "error"), question, gr.skip()


def skip_outputs(count: int) -> tuple[Any, ...]:
    """Leave `count` outputs unchanged."""
    return tuple(gr.skip() for _ in range(count))


def build_chat_page(client: ApiClient) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client)
    buttons = [page.send, page.stop]
    # Every function runs through Gradio's queue; routes that bypass it are closed (exposure.py).
    quiet: EventOptions = {"show_progress": "hidden", "api_visibility": "private"}
    # Gradio's preprocessing would refuse a model that the menu had before the server was restarted,
    # and, after the question was added to the conversation, a number beyond a slider's range.
    raw: EventOptions = {**quiet, "preprocess": False}
    gr.on(fn=page.open, outputs=[page.model, page.note, page.models], **quiet)
    page.timer.tick(page.refresh, [page.models, page.model], [page.model, page.models], **raw)
    # The chat is an output so that each question restarts the hour after which Gradio deletes it.
    asked = [page.chat, page.history, page.text, page.model, page.models, page.note, *buttons]
    started = gr.on(
        [page.text.submit, page.send.click],
        page.ask,
        [page.text, page.chat, page.model],
        asked,
        **raw,
    )
    picked = page.history.example_select(page.ask_example, [page.chat, page.model], asked, **raw)
    answering: list[Dependency] = []
    for event in (started, picked):
        step = event.then(
            page.respond,
            [page.chat, page.temperature, page.max_tokens],
            [page.chat, page.history, page.answered_by, page.text, page.note],
            **raw,
        )
        step.then(page.free_buttons, page.chat, buttons, **quiet)
        answering.append(step)
    stopping: EventOptions = {**raw, "cancels": answering}
    page.stop.click(page.stop_answer, page.chat, buttons, **stopping)
    page.clear.click(
        page.empty_conversation, page.chat, [page.history, page.answered_by, *buttons], **stopping
    )
    page.model.input(
        page.choose,
        [page.chat, page.models, page.model, page.text],
        [page.note, page.history, page.answered_by, page.text],
        **stopping,
    ).then(page.free_buttons, page.chat, buttons, **quiet)
