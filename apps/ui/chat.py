"""The page "Chat": talk to any model and see which one answered."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from html import escape
from typing import Any

import gradio as gr

from apps.ui import markup
from apps.ui.client import ApiClient, ApiError, Message
from apps.ui.resources import Model

LATEST_ALIAS = "latest"
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


def read_messages(history: Sequence[dict[str, Any]]) -> list[Message]:
    """The conversation as the API takes it; what the page adds to a message is left out."""
    messages = []
    for entry in history:
        content = entry["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        text = "".join(part["text"] for part in parts if part.get("type") == "text")
        if text:
            messages.append({"role": entry["role"], "content": text})
    return messages


def describe_answer(model: str | None, num_tokens: int | None, seconds: float) -> str:
    """A line that names who answered, and how much and how fast."""
    parts = [f"Answered by {model or 'a model without a name'}"]
    if num_tokens is not None:
        parts.append(f"{num_tokens:,} tokens")
    parts.append(f"{seconds:.1f} s")
    return " · ".join(parts)


async def answer(
    client: ApiClient,
    history: list[dict[str, Any]],
    model: str,
    temperature: float,
    max_tokens: int,
) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
    """Stream an answer to the last message; yields the history and a line about the answer.

    At its end the line moves into the history, below the answer. Raises `ApiError`, after which
    the history stands as it was yielded last.
    """
    started = time.monotonic()
    text, name, num_tokens = "", None, None
    async for piece in client.stream_chat(model, read_messages(history), temperature, max_tokens):
        text += piece.text
        name = piece.model or name
        num_tokens = piece.num_tokens if piece.num_tokens is not None else num_tokens
        if piece.text:
            line = describe_answer(name, num_tokens, time.monotonic() - started)
            yield [*history, {"role": "assistant", "content": text}], line
    line = describe_answer(name, num_tokens, time.monotonic() - started)
    note = gr.HTML(f'<p class="ts-answered">{escape(line)}</p>')
    yield [*history, {"role": "assistant", "content": [text, note]}], ""


class _Page:
    """The components of the page and what happens when they are used."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
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

    async def open(self, request: gr.Request) -> tuple[Any, Any]:
        """Fill the model menu; the address may name a model."""
        try:
            models = await self._client.list_models()
        except ApiError as exc:
            return gr.skip(), show_note(exc.message, "error")
        choices = list_choices(models)
        offered = [value for _, value in choices]
        asked = request.query_params.get("model", LATEST_ALIAS)
        chosen = asked if asked in offered else next(iter(offered), None)
        return gr.Dropdown(choices=choices, value=chosen), note_model(find_model(models, asked))

    async def choose(self, name: str | None) -> Any:
        """Say what one should know about the chosen model."""
        try:
            return note_model(find_model(await self._client.list_models(), name or ""))
        except ApiError as exc:
            return show_note(exc.message, "error")

    async def respond(
        self,
        history: list[dict[str, Any]],
        model: str | None,
        temperature: float,
        max_tokens: float,
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Stream the answer into the conversation."""
        if not history or history[-1]["role"] != "user":
            return
        try:
            async for conversation, line in answer(
                self._client, history, model or LATEST_ALIAS, temperature, int(max_tokens)
            ):
                yield conversation, f'<p class="ts-muted">{escape(line)}</p>'
        except ApiError as exc:
            gr.Warning(escape(exc.message))
            yield gr.skip(), markup.render_notice(exc.message, "error")


def note_model(model: Model | None) -> Any:
    """The note for a model, empty but for the demonstration base."""
    is_bare = model is not None and model.base and model.demonstration
    return show_note(DEMONSTRATION_NOTE if is_bare else "")


def show_note(message: str, kind: str = "info") -> Any:
    """Show a notice, or hide it if there is nothing to say."""
    return gr.HTML(markup.render_notice(message, kind), visible=bool(message))


def ask(text: str, history: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Put what was typed into the conversation; an empty line does nothing."""
    if text.strip():
        yield [*history, {"role": "user", "content": text.strip()}], "", *show_buttons(busy=True)


def ask_example(event: gr.SelectData) -> tuple[Any, ...]:
    """Put an example question into the conversation."""
    return [{"role": "user", "content": event.value["text"]}], "", *show_buttons(busy=True)


def show_buttons(*, busy: bool) -> tuple[Any, Any]:
    """Stop takes the place of Send while an answer comes."""
    return gr.Button(visible=not busy), gr.Button(visible=busy)


def build_chat_page(client: ApiClient) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client)
    buttons = [page.send, page.stop]
    asked = [page.history, page.text, *buttons]
    gr.on(
        fn=page.open,
        outputs=[page.model, page.note],
        show_progress="hidden",
        api_visibility="private",
    )
    page.model.input(
        page.choose, page.model, page.note, show_progress="hidden", api_visibility="private"
    )
    started = gr.on(
        [page.text.submit, page.send.click],
        ask,
        [page.text, page.history],
        asked,
        queue=False,
        api_visibility="private",
    )
    picked = page.history.example_select(
        ask_example, outputs=asked, queue=False, api_visibility="private"
    )
    answering = []
    for event in (started, picked):
        step = event.then(
            page.respond,
            [page.history, page.model, page.temperature, page.max_tokens],
            [page.history, page.answered_by],
            show_progress="hidden",
            api_visibility="private",
        )
        step.then(
            lambda: show_buttons(busy=False), outputs=buttons, queue=False, api_visibility="private"
        )
        answering.append(step)
    page.stop.click(
        lambda: show_buttons(busy=False),
        outputs=buttons,
        cancels=answering,
        queue=False,
        api_visibility="private",
    )
    page.clear.click(
        lambda: ([], "", *show_buttons(busy=False)),
        outputs=[page.history, page.answered_by, *buttons],
        cancels=answering,
        queue=False,
        api_visibility="private",
    )
