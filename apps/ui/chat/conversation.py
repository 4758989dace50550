"""State of the page "Chat": conversations, the one that a tab has open, and streamed answers."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, NamedTuple, TypedDict

import gradio as gr

from apps.client.client import ApiClient
from apps.client.resources import Piece
from apps.client.text import Message, Sampling

OTHER_MODEL_NOTE = "{} answered instead of {}; this is a new conversation with your last question."


@dataclass(frozen=True)
class Turn:
    """One message of a conversation; `note` names the model that answered."""

    role: str
    text: str
    note: str = ""


class ChatbotMessage(TypedDict):
    """A message in the format of Gradio's chatbot: its text, and a note if there is one."""

    role: str
    content: str | list[str | gr.HTML]


@dataclass(frozen=True)
class Conversation:
    """The messages so far, and the model that answered.

    It is kept on the server. The history that a browser sends is never read, because Gradio would
    extract files and components from it.
    """

    turns: tuple[Turn, ...] = ()
    asked_model: str = ""  # id or alias, as it was chosen
    pointed_id: str = ""  # the model of that name when the last question was sent
    model_id: str = ""  # the model that gave all answers; empty before the first answer

    def add(self, turn: Turn) -> "Conversation":
        """Return the conversation with one more message."""
        return replace(self, turns=(*self.turns, turn))

    def find_unanswered(self) -> str | None:
        """Return the last question if it has no answer, else None."""
        return self.turns[-1].text if self.turns and self.turns[-1].role == "user" else None

    def drop_unanswered(self) -> "Conversation":
        """Return the conversation without its last question if that has no answer."""
        return self if self.find_unanswered() is None else replace(self, turns=self.turns[:-1])

    def begin_again(self) -> "Conversation":
        """Return a new conversation with the last question of this one."""
        return replace(self, turns=self.turns[-1:], model_id="")

    def to_messages(self) -> list[Message]:
        """Return the messages in the API's format."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns if turn.text]

    def to_chatbot(self) -> list[ChatbotMessage]:
        """Return the messages in the format of Gradio's chatbot."""
        return [
            {"role": turn.role, "content": [turn.text, _render_note(turn.note)]}
            if turn.note
            else {"role": turn.role, "content": turn.text}
            for turn in self.turns
        ]


def _render_note(note: str) -> gr.HTML:
    return gr.HTML(f'<p class="ts-answered">{escape(note)}</p>')


@dataclass
class OpenChat:
    """The open conversation of a tab, and its question that has not been answered.

    Concurrent event handlers share one such object. Each change is made without an await in
    between, so that no handler overwrites the change of another. An immutable state would be
    overwritten: Gradio passes it to a handler before it runs, and replaces it afterwards.
    """

    conversation: Conversation = Conversation()
    chosen_model: Any = None  # the last choice in the menu, as the browser sent it
    _asked: Conversation | None = field(default=None, init=False)
    """A conversation that ends with a question whose answer has not been started."""
    _answered: Conversation | None = field(default=None, init=False)
    """The conversation that is being answered, with the answer so far."""

    @property
    def is_busy(self) -> bool:
        """Whether a question is being answered, or is about to be."""
        return self._asked is not None or self._answered is not None

    def begin(self, conversation: Conversation) -> None:
        """Open another conversation; drop an answer in progress."""
        self.stop()
        self.conversation = conversation

    def stop(self) -> None:
        """Keep the conversation as it is; drop the rest of an answer in progress."""
        self._asked = self._answered = None

    def ask(self, conversation: Conversation) -> None:
        """Open a conversation that ends with a question to be answered."""
        self.conversation = self._asked = conversation

    def begin_answer(self) -> Conversation | None:
        """Mark the pending question as being answered and return its conversation, else None."""
        if self._asked is None:
            return None
        self._answered, self._asked = self._asked, None
        return self._answered

    def update_answer(self, before: Conversation, after: Conversation) -> bool:
        """Replace the conversation being answered; return False if `before` no longer is."""
        if self._answered is not before:
            return False
        self.conversation = self._answered = after
        return True

    def end_answer(self, conversation: Conversation) -> None:
        """Mark an answer as ended; it may have been dropped before."""
        if self._answered is conversation:
            self._answered = None


def describe_answer(model: str | None, num_tokens: int | None, seconds: float) -> str:
    """Return a line with the model that answered, the number of tokens and the seconds."""
    parts = [f"Answered by {model or 'a model without a name'}"]
    if num_tokens is not None:
        parts.append(f"{num_tokens:,} tokens")
    parts.append(f"{seconds:.1f} s")
    return " · ".join(parts)


class AnswerStep(NamedTuple):
    """A conversation with the answer so far, a line about the answer, and a note on the model."""

    conversation: Conversation
    line: str
    note: str = ""


async def answer(
    client: ApiClient, conversation: Conversation, temperature: float, max_tokens: int
) -> AsyncGenerator[AnswerStep, None]:
    """Stream an answer to the last message.

    All answers of a conversation are from one model. If another model starts to answer, as after a
    hand-over, that answer is dropped and the question is sent again in a new conversation. The last
    step has the line about the answer inside the conversation. Only the first step has a note.
    Raises `ApiClientError`; the conversation yielded last then remains valid.
    """
    started = time.monotonic()
    first, pieces = await _send(client, conversation, temperature, max_tokens)
    notes = []
    if conversation.model_id and first.model not in (None, conversation.model_id):
        await pieces.aclose()
        notes.append(OTHER_MODEL_NOTE.format(first.model, conversation.model_id))
        conversation = conversation.begin_again()
        first, pieces = await _send(client, conversation, temperature, max_tokens)
    if first.model is not None:
        conversation = replace(conversation, model_id=first.model)
        notes += describe_other_model(conversation)
    note, text, num_tokens = " ".join(notes), "", None
    async with aclosing(pieces):
        piece: Piece | None = first
        while piece is not None:
            text += piece.text
            num_tokens = piece.num_tokens if piece.num_tokens is not None else num_tokens
            if piece.text:
                line = describe_answer(first.model, num_tokens, time.monotonic() - started)
                yield AnswerStep(conversation.add(Turn("assistant", text)), line, note)
                note = ""
            piece = await anext(pieces, None)
    line = describe_answer(first.model, num_tokens, time.monotonic() - started)
    yield AnswerStep(conversation.add(Turn("assistant", text, note=line)), "", note)


async def _send(
    client: ApiClient, conversation: Conversation, temperature: float, max_tokens: int
) -> tuple[Piece, AsyncGenerator[Piece, None]]:
    """Send a conversation; return the first piece of the answer, and a generator of the others."""
    messages = conversation.to_messages()
    pieces = client.text.stream_chat(
        conversation.asked_model, messages, Sampling(temperature, max_tokens), wants_usage=True
    )
    return await anext(pieces, Piece()), pieces


def describe_other_model(conversation: Conversation) -> list[str]:
    """Return a note if the model that answered is not the one shown for the chosen name."""
    shown, answered = conversation.pointed_id, conversation.model_id
    if not shown or shown == answered:
        return []
    name = conversation.asked_model
    asked = f"You asked {name}" if name == shown else f"{name} pointed to {shown} when you asked"
    return [f"{asked}, but {answered} answered."]
