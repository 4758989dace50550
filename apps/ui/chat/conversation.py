"""State of the page "Chat": conversations, the one that a tab has open, and streamed answers."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import AnswerFailedError
from apps.client.resources import Piece
from apps.client.text import Message
from apps.ui.chat.answer_note import AnswerFacts, render_note
from apps.ui.chat.opening import Opening
from apps.ui.chat.sampling_settings import AnswerSettings

MAX_INACTIVE_CONVERSATIONS = 8
"""Most conversations of a tab with models that are not chosen at present."""

OTHER_MODEL_NOTE = "{} answered instead of {}; this is a new conversation with your last question."
NOT_CONTINUED = "{} would continue the answer of {}: the answer stays as it is."


@dataclass(frozen=True)
class Turn:
    """One message of a conversation; `facts` describe a complete answer."""

    role: str
    text: str
    facts: AnswerFacts | None = None


class ChatbotMessage(TypedDict):
    """A message in the format of Gradio's chatbot: its text, and a note if there is one."""

    role: str
    content: str | list[str | gr.HTML]


@dataclass(frozen=True)
class Conversation:
    """The messages so far, and the model that answered.

    It is kept on the server. A history that a browser sends as the value of a component is never
    read, because Gradio would extract files and components from it.
    """

    turns: tuple[Turn, ...] = ()
    asked_model: str = ""  # id or alias, as it was chosen
    pointed_id: str = ""  # the model of that name when the last question was sent
    model_id: str = ""  # the model that gave all answers; empty before the first answer

    def add(self, turn: Turn) -> "Conversation":
        """Return the conversation with one more message."""
        return replace(self, turns=(*self.turns, turn))

    def cut(self, num_turns: int) -> "Conversation":
        """Return the conversation with its first messages only."""
        model_id = self.model_id if num_turns else ""
        return replace(self, turns=self.turns[:num_turns], model_id=model_id)

    def find_unanswered(self) -> str | None:
        """Return the last question if it has no answer, else None."""
        return self.turns[-1].text if self.turns and self.turns[-1].role == "user" else None

    def drop_unanswered(self) -> "Conversation":
        """Return the conversation without its last question if that has no answer."""
        return self if self.find_unanswered() is None else replace(self, turns=self.turns[:-1])

    def begin_again(self) -> "Conversation":
        """Return a new conversation with the last question of this one."""
        return replace(self, turns=self.turns[-1:], model_id="")

    def find_cut_answer(self) -> Turn | None:
        """Return the last message if it is an answer that ended at the limit, else None."""
        last = self.turns[-1] if self.turns else None
        return last if last and last.facts and last.facts.is_cut and last.text else None

    def to_messages(self) -> list[Message]:
        """Return the messages in the API's format."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns if turn.text]

    def to_chatbot(self) -> list[ChatbotMessage]:
        """Return the messages in the format of Gradio's chatbot."""
        return [
            {"role": turn.role, "content": [turn.text, gr.HTML(render_note(turn.facts))]}
            if turn.facts
            else {"role": turn.role, "content": turn.text}
            for turn in self.turns
        ]


class Question(NamedTuple):
    """A conversation that ends with a question, or with an answer to continue.

    `before` is the conversation to return to if there is no answer; `text` then returns to the
    field of questions.
    """

    conversation: Conversation
    settings: AnswerSettings
    before: Conversation
    text: str = ""
    continues: bool = False


@dataclass
class OpenChat:
    """The open conversation of a tab, and its question that has not been answered.

    Concurrent event handlers share one such object. Each change is made without an await in
    between, so that no handler overwrites the change of another. An immutable state would be
    overwritten: Gradio passes it to a handler before it runs, and replaces it afterwards.
    """

    conversation: Conversation = Conversation()
    chosen_model: Any = None  # the last choice in the menu, as the browser sent it
    shows_code: bool = False  # whether the panel with the request is open
    opening: Opening = field(default_factory=Opening)
    _asked: Question | None = field(default=None, init=False)
    """A question whose answer has not been started."""
    _answered: Conversation | None = field(default=None, init=False)
    """The conversation that is being answered, with the answer so far."""
    _without_text: Question | None = field(default=None, init=False)
    """The open question while its answer has no text; also once the answer was cancelled."""
    _inactive: dict[str, Conversation] = field(default_factory=dict, init=False)
    """Conversations with other models, by the name of the model; the oldest first."""

    @property
    def is_busy(self) -> bool:
        """Whether a question is being answered, or is about to be."""
        return self._asked is not None or self._answered is not None

    def begin(self, conversation: Conversation) -> None:
        """Open another conversation; drop an answer in progress."""
        self.stop()
        self.conversation = conversation

    def switch_model(self, name: str) -> bool:
        """Open the conversation with another model: the last one of this tab, else a new one.

        A question whose answer has no text is dropped from the conversation that was open. Returns
        whether that has answers.
        """
        pending = self._without_text
        previous = pending.before if pending else self.conversation.drop_unanswered()
        if previous.turns:
            self._inactive[previous.asked_model] = previous
        self.begin(self._inactive.pop(name, Conversation(asked_model=name)))
        while len(self._inactive) > MAX_INACTIVE_CONVERSATIONS:
            del self._inactive[next(iter(self._inactive))]
        return bool(previous.turns)

    def find_unanswered(self) -> str | None:
        """Return the last question if it has no answer and was not asked before, else None."""
        if self._without_text:
            return self._without_text.text or None
        return self.conversation.find_unanswered()

    def stop(self) -> None:
        """Keep the conversation as it is; drop the rest of an answer in progress."""
        self._asked = self._answered = self._without_text = None

    def ask(self, question: Question) -> None:
        """Open a conversation that ends with a question to be answered."""
        self.conversation, self._asked = question.conversation, question
        self._without_text = question

    def begin_answer(self) -> Question | None:
        """Mark the pending question as being answered and return it, else None."""
        if self._asked is None:
            return None
        asked, self._asked = self._asked, None
        self._answered = asked.conversation
        return asked

    def update_answer(self, before: Conversation, after: Conversation) -> bool:
        """Replace the conversation being answered; return False if `before` no longer is."""
        if self._answered is not before:
            return False
        self.conversation = self._answered = after
        self._without_text = None
        return True

    def end_answer(self, conversation: Conversation) -> None:
        """Mark an answer as ended; it may have been dropped before."""
        if self._answered is conversation:
            self._answered = None


class AnswerStep(NamedTuple):
    """A conversation with the answer so far, a line about the answer, and a note on the model."""

    conversation: Conversation
    line: str
    note: str = ""


class _Clock:
    """The times of one answer."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first = self._last = 0.0

    def record_text(self) -> None:
        """Record that text arrived."""
        self._last = time.monotonic()
        self._first = self._first or self._last

    def describe(self, piece: Piece, num_tokens: int | None, *, is_cut: bool) -> AnswerFacts:
        """Return the facts of the answer; the speed excludes the wait for its first token."""
        seconds = self._last - self._first
        speed = (
            (num_tokens - 1) / seconds if num_tokens and num_tokens > 1 and seconds > 0 else None
        )
        return AnswerFacts(
            model=piece.model,
            run_id=piece.run_id,
            checkpoint=piece.checkpoint,
            num_tokens=num_tokens,
            seconds=time.monotonic() - self._started,
            tokens_per_s=speed,
            is_cut=is_cut,
        )


async def answer(client: ApiClient, question: Question) -> AsyncGenerator[AnswerStep, None]:
    """Stream an answer to the last message, or the rest of the last answer.

    All answers of a conversation are from one model. If another model starts to answer, as after a
    hand-over, a new conversation begins with the question, which is sent again unless it was sent
    without earlier messages. The last step has the facts of the answer inside the conversation.
    Only the first step has a note. Raises `ApiClientError`; the conversation yielded last then
    remains valid.
    """
    conversation, clock = question.conversation, _Clock()
    first, pieces = await _send(client, question)
    notes = []
    if conversation.model_id and first.model not in (None, conversation.model_id):
        if question.continues:
            await pieces.aclose()
            raise AnswerFailedError(NOT_CONTINUED.format(first.model, conversation.model_id))
        notes.append(OTHER_MODEL_NOTE.format(first.model, conversation.model_id))
        conversation = conversation.begin_again()
        if question.settings.sends_earlier:
            await pieces.aclose()
            first, pieces = await _send(client, question._replace(conversation=conversation))
    if first.model is not None:
        conversation = replace(conversation, model_id=first.model)
        notes += describe_other_model(conversation)
    text, num_earlier = "", 0
    if question.continues:
        begun = conversation.turns[-1]
        text, num_earlier = begun.text, begun.facts.num_tokens or 0 if begun.facts else 0
        conversation = conversation.cut(len(conversation.turns) - 1)
    note, num_tokens, is_cut = " ".join(notes), None, False
    async with aclosing(pieces):
        piece: Piece | None = first
        while piece is not None:
            text += piece.text
            num_tokens = piece.num_tokens if piece.num_tokens is not None else num_tokens
            is_cut = is_cut or piece.finish_reason == "length"
            if piece.text:
                clock.record_text()
                yield AnswerStep(
                    conversation.add(Turn("assistant", text)), f"{first.model or ''} answers…", note
                )
                note = ""
            piece = await anext(pieces, None)
    facts = clock.describe(first, num_tokens, is_cut=is_cut)
    if num_tokens is not None:
        facts = facts.model_copy(update={"num_tokens": num_earlier + num_tokens})
    yield AnswerStep(conversation.add(Turn("assistant", text, facts)), "", note)


async def _send(client: ApiClient, question: Question) -> tuple[Piece, AsyncGenerator[Piece, None]]:
    """Send a conversation; return the first piece of the answer, and a generator of the others."""
    conversation, settings = question.conversation, question.settings
    pieces = client.text.stream_chat(
        conversation.asked_model,
        settings.select_messages(conversation.to_messages()),
        settings.sampling,
        wants_usage=True,
        continues=question.continues,
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
