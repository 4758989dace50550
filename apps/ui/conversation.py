"""What is said on the page "Chat": conversations, the one that a tab has open, and answers."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, NamedTuple

import gradio as gr

from apps.ui.client import ApiClient, Message
from apps.ui.resources import Piece

OTHER_MODEL_NOTE = "{} answered instead of {}; this is a new conversation with your last question."


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
    pointed_id: str = ""  # what that name pointed to when the last question was sent
    model_id: str = ""  # what gave the answers, of which all are from one model; empty before

    def add(self, turn: Turn) -> "Conversation":
        """The conversation with one more message."""
        return replace(self, turns=(*self.turns, turn))

    def find_unanswered(self) -> str | None:
        """The last question, unless something answered it."""
        return self.turns[-1].text if self.turns and self.turns[-1].role == "user" else None

    def drop_unanswered(self) -> "Conversation":
        """The conversation without a last question that nothing answered."""
        return self if self.find_unanswered() is None else replace(self, turns=self.turns[:-1])

    def begin_again(self) -> "Conversation":
        """A new conversation with the last question of this one."""
        return replace(self, turns=self.turns[-1:], model_id="")

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


@dataclass
class OpenChat:
    """The conversation that a tab has open, and what is to be answered of it.

    Functions that run at the same time share one such object and change it between two awaits, so
    that none of them overwrites what another one did meanwhile. Gradio hands a state that cannot
    be changed to a function before it runs, and replaces it after.
    """

    conversation: Conversation = Conversation()
    chosen_model: Any = None  # what was last chosen in the menu, as the browser sent it
    _asked: Conversation | None = field(default=None, init=False)
    """Ends with a question that nobody has begun to answer."""
    _answered: Conversation | None = field(default=None, init=False)
    """Is being answered, as far as that has got."""

    @property
    def is_busy(self) -> bool:
        """Whether a question is being answered, or is about to be."""
        return self._asked is not None or self._answered is not None

    def begin(self, conversation: Conversation) -> None:
        """Open another conversation; an answer that is still being given is dropped."""
        self.stop()
        self.conversation = conversation

    def stop(self) -> None:
        """Leave the conversation as it is; what is still to come of an answer is dropped."""
        self._asked = self._answered = None

    def ask(self, conversation: Conversation) -> None:
        """Open a conversation that ends with a question, which is to be answered."""
        self.conversation = self._asked = conversation

    def take_question(self) -> Conversation | None:
        """Begin to answer; returns the conversation with the question, once."""
        if self._asked is None:
            return None
        self._answered, self._asked = self._asked, None
        return self._answered

    def grow(self, before: Conversation, after: Conversation) -> bool:
        """Replace a conversation that is being answered; False if it no longer is."""
        if self._answered is not before:
            return False
        self.conversation = self._answered = after
        return True

    def end_answer(self, conversation: Conversation) -> None:
        """Note that nothing more is to come of an answer; it may have been dropped before."""
        if self._answered is conversation:
            self._answered = None


def describe_answer(model: str | None, num_tokens: int | None, seconds: float) -> str:
    """A line that names who answered, and how much and how fast."""
    parts = [f"Answered by {model or 'a model without a name'}"]
    if num_tokens is not None:
        parts.append(f"{num_tokens:,} tokens")
    parts.append(f"{seconds:.1f} s")
    return " · ".join(parts)


class AnswerStep(NamedTuple):
    """A conversation with an answer so far, a line about it, and what to know of the model."""

    conversation: Conversation
    line: str
    note: str = ""


async def answer(
    client: ApiClient, conversation: Conversation, temperature: float, max_tokens: int
) -> AsyncGenerator[AnswerStep, None]:
    """Stream an answer to the last message.

    All answers of a conversation are from one model. Where another one begins to answer, as after a
    hand-over, that answer is dropped and the question is sent again in a new conversation. At the
    end of the answer the line about it moves into the conversation. A note comes with the first
    step alone. Raises `ApiError`, after which the conversation is the one yielded last.
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
    """Send a conversation; returns the first piece of the answer, and the others."""
    messages = conversation.to_messages()
    pieces = client.stream_chat(conversation.asked_model, messages, temperature, max_tokens)
    return await anext(pieces, Piece()), pieces


def describe_other_model(conversation: Conversation) -> list[str]:
    """Say that another model answers than the page shows for the chosen name, where it does."""
    shown, answered = conversation.pointed_id, conversation.model_id
    if not shown or shown == answered:
        return []
    name = conversation.asked_model
    asked = f"You asked {name}" if name == shown else f"{name} pointed to {shown} when you asked"
    return [f"{asked}, but {answered} answered."]
