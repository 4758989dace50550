"""The page "Chat": talk to any model and see which one answered."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr

from apps.ui import markup
from apps.ui.client import ApiClient, ApiError, Message
from apps.ui.resources import Model

LATEST_ALIAS = "latest"
REFRESH_INTERVAL_S = 10.0
UNKNOWN_MODEL_NOTE = "There is no model {!r}; choose one from the menu."
QUESTIONS = (
    "When does the workshop open?",
    "Whom do I ask for holiday?",
    "What is the capital of France?",
    "What is two plus three?",
)
DEMONSTRATION_NOTE = (
    "This is the small demonstration model as it comes: it talks, but knows almost nothing and "
    "nothing about your data. Fine-tune it, then ask again."
)


def list_choices(models: Sequence[Model]) -> list[tuple[str, str]]:
    """What the model menu offers: `latest` first, with the model it points to, then all models."""
    latest = [model for model in models if LATEST_ALIAS in model.aliases]
    choices = [(f"{LATEST_ALIAS} → {model.id}", LATEST_ALIAS) for model in latest]
    return choices + [
        (f"{model.id} (base)" if model.base else model.id, model.id) for model in models
    ]


def find_model(models: Sequence[Model], name: str) -> Model | None:
    """The model of that id or alias."""
    return next((model for model in models if name == model.id or name in model.aliases), None)


@dataclass(frozen=True)
class Turn:
    """One message of a conversation; `note` names who answered."""

    role: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Conversation:
    """What was said so far, and with which model.

    It stays on the server: what a browser sends of its history is never read, as Gradio would take
    files and components out of it.
    """

    turns: tuple[Turn, ...] = ()
    asked_model: str = ""  # id or alias, as it was chosen
    model_id: str = ""  # what that name pointed to

    def add(self, turn: Turn) -> "Conversation":
        """The conversation with one more message."""
        return replace(self, turns=(*self.turns, turn))

    def drop_unanswered(self) -> "Conversation":
        """The conversation without a last question that nothing answered."""
        if self.turns and self.turns[-1].role == "user":
            return replace(self, turns=self.turns[:-1])
        return self

    def to_messages(self) -> list[Message]:
        """The conversation as the API takes it."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns if turn.text]

    def to_chatbot(self) -> list[dict[str, Any]]:
        """The conversation as Gradio shows it."""
        return [
            {"role": turn.role, "content": [turn.text, _render_note(turn.note)]}
            if turn.note
            else {"role": turn.role, "content": turn.text}
            for turn in self.turns
        ]


def _render_note(note: str) -> gr.HTML:
    return gr.HTML(f'<p class="ts-answered">{escape(note)}</p>')


def describe_answer(model: str | None, num_tokens: int | None, seconds: float) -> str:
    """A line that names who answered, and how much and how fast."""
    parts = [f"Answered by {model or 'a model without a name'}"]
    if num_tokens is not None:
        parts.append(f"{num_tokens:,} tokens")
    parts.append(f"{seconds:.1f} s")
    return " · ".join(parts)


async def answer(
    client: ApiClient, conversation: Conversation, temperature: float, max_tokens: int
) -> AsyncIterator[tuple[Conversation, str]]:
    """Stream an answer to the last message; yields the conversation and a line about the answer.

    At its end the line moves into the conversation, below the answer. Raises `ApiError`, after
    which the conversation stands as it was yielded last.
    """
    started = time.monotonic()
    text, name, num_tokens = "", None, None
    messages = conversation.to_messages()
    pieces = client.stream_chat(conversation.asked_model, messages, temperature, max_tokens)
    async for piece in pieces:
        text += piece.text
        name = piece.model or name
        num_tokens = piece.num_tokens if piece.num_tokens is not None else num_tokens
        if piece.text:
            line = describe_answer(name, num_tokens, time.monotonic() - started)
            yield conversation.add(Turn("assistant", text)), line
    line = describe_answer(name, num_tokens, time.monotonic() - started)
    yield conversation.add(Turn("assistant", text, note=line)), ""


class _Page:
    """The components of the page and what happens when they are used."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.conversation: gr.State = gr.State(Conversation())
        self.choices: gr.State = gr.State()  # as the menu shows them
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
                0, 2, 0, step=0.1, label="Temperature", info="0 always takes the likeliest token."
            )
            self.max_tokens = gr.Slider(8, 1024, 128, step=8, label="Tokens at most")

    async def open(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Fill the model menu; the address may name a model."""
        try:
            models = await self._client.list_models()
        except ApiError as exc:
            return gr.skip(), show_note(exc.message, "error"), gr.skip()
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
        return gr.Dropdown(choices=choices, value=chosen), note, choices

    async def choose(self, name: str | None) -> tuple[Any, ...]:
        """Begin a new conversation with the chosen model, and note what one should know of it."""
        cleared = empty_conversation()
        try:
            return note_model(find_model(await self._client.list_models(), name or "")), *cleared
        except ApiError as exc:
            return show_note(exc.message, "error"), *cleared

    async def refresh(self, shown: list[tuple[str, str]] | None, name: str | None) -> Any:
        """Update the model menu where models came or went or an alias moved."""
        try:
            models = await self._client.list_models()
        except ApiError:  # sending a message reports it
            return gr.skip(), gr.skip()
        choices = list_choices(models)
        if choices == shown:
            return gr.skip(), gr.skip()
        is_offered = any(name == value for _, value in choices)
        return gr.Dropdown(choices=choices, value=name if is_offered else None), choices

    async def ask(self, text: Any, conversation: Conversation, name: Any) -> tuple[Any, ...]:
        """Put what was typed into the conversation; an empty line changes nothing.

        The model is looked up now, so that the menu shows what will answer: where the chosen alias
        has moved since the last message, a new conversation begins.
        """
        unchanged = tuple(gr.skip() for _ in range(8))
        question = text.strip() if isinstance(text, str) else ""
        if not question:
            return unchanged
        if not name:
            gr.Warning("Choose a model first.")
            return unchanged
        try:
            models = await self._client.list_models()
        except ApiError as exc:
            gr.Warning(escape(exc.message))
            return unchanged
        model = find_model(models, name)
        if model is None:
            gr.Warning(escape(UNKNOWN_MODEL_NOTE.format(name)))
            return unchanged
        note = note_model(model)
        begun = conversation.drop_unanswered()
        if (begun.asked_model, begun.model_id) != (name, model.id):
            if begun.turns:
                note = show_note(f"{name} is {model.id} now; this is a new conversation.")
            begun = Conversation(asked_model=name, model_id=model.id)
        begun = begun.add(Turn("user", question))
        choices = list_choices(models)
        menu = gr.Dropdown(choices=choices, value=name)
        return begun, begun.to_chatbot(), "", menu, choices, note, *show_buttons(busy=True)

    async def ask_example(
        self, conversation: Conversation, name: Any, event: gr.SelectData
    ) -> tuple[Any, ...]:
        """Put an example question into the conversation."""
        value = event.value if isinstance(event.value, dict) else {}
        return await self.ask(value.get("text"), conversation, name)

    async def respond(
        self, conversation: Conversation, temperature: float, max_tokens: float
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Stream the answer into the conversation.

        A question that the API refuses leaves the conversation and returns to the text field.
        """
        if not conversation.turns or conversation.turns[-1].role != "user":
            yield tuple(gr.skip() for _ in range(4))  # without it Gradio would empty the outputs
            return
        grown = conversation
        try:
            async for grown, line in answer(
                self._client, conversation, temperature, int(max_tokens)
            ):
                yield (
                    grown,
                    grown.to_chatbot(),
                    f'<p class="ts-muted">{escape(line)}</p>',
                    gr.skip(),
                )
        except ApiError as exc:
            gr.Warning(escape(exc.message))
            notice = markup.render_notice(exc.message, "error")
            kept = grown.drop_unanswered()
            question = conversation.turns[-1].text if kept is not grown else gr.skip()
            yield kept, kept.to_chatbot(), notice, question


def note_model(model: Model | None) -> Any:
    """The note for a model, empty but for the demonstration base."""
    is_bare = model is not None and model.base and model.demonstration
    return show_note(DEMONSTRATION_NOTE if is_bare else "")


def show_note(message: str, kind: str = "info") -> Any:
    """Show a notice, or hide it if there is nothing to say."""
    return gr.HTML(markup.render_notice(message, kind), visible=bool(message))


def show_buttons(*, busy: bool) -> tuple[Any, Any]:
    """Stop takes the place of Send while an answer comes."""
    return gr.Button(visible=not busy), gr.Button(visible=busy)


def build_chat_page(client: ApiClient) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client)
    buttons = [page.send, page.stop]
    # Every function goes through Gradio's queue: its other entrance is closed (see exposure.py).
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    # Gradio would refuse a model that the menu had before the server was restarted.
    raw: dict[str, Any] = {**quiet, "preprocess": False}
    gr.on(fn=page.open, outputs=[page.model, page.note, page.choices], **quiet)
    page.timer.tick(page.refresh, [page.choices, page.model], [page.model, page.choices], **raw)
    asked = [page.conversation, page.history, page.text, page.model, page.choices, page.note]
    started = gr.on(
        [page.text.submit, page.send.click],
        page.ask,
        [page.text, page.conversation, page.model],
        [*asked, *buttons],
        **raw,
    )
    picked = page.history.example_select(
        page.ask_example, [page.conversation, page.model], [*asked, *buttons], **raw
    )
    answering = []
    for event in (started, picked):
        step = event.then(
            page.respond,
            [page.conversation, page.temperature, page.max_tokens],
            [page.conversation, page.history, page.answered_by, page.text],
            **quiet,
        )
        step.then(free_buttons, outputs=buttons, **quiet)
        answering.append(step)
    emptied = [page.conversation, page.history, page.answered_by, *buttons]
    page.stop.click(free_buttons, outputs=buttons, cancels=answering, **quiet)
    page.clear.click(empty_conversation, outputs=emptied, cancels=answering, **quiet)
    page.model.input(page.choose, page.model, [page.note, *emptied], cancels=answering, **raw)


def free_buttons() -> tuple[Any, Any]:
    """Show Send again."""
    return show_buttons(busy=False)


def empty_conversation() -> tuple[Any, ...]:
    """Begin a new conversation."""
    return Conversation(), [], "", *show_buttons(busy=False)
