"""State of the page "Compare": one conversation for each chosen model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apps.ui.chat.conversation import Conversation, OpenChat, Question
from apps.ui.compare.merged_answers import MergedAnswers

MAX_COLUMNS = 4


@dataclass
class Comparison:
    """The chosen names, each with its own conversation; shared by concurrent event handlers."""

    chats: dict[str, OpenChat] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    """What the columns show below their conversations, as HTML."""
    running: MergedAnswers | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns, from left to right."""
        return list(self.chats)

    @property
    def is_busy(self) -> bool:
        """Whether a question is being answered by any model, or is about to be."""
        return any(chat.is_busy for chat in self.chats.values())

    def choose(self, names: Sequence[str]) -> None:
        """Show the columns of these names; those that stay keep their conversations."""
        if names == self.names:
            return
        self.stop()
        self.statuses.clear()
        self.chats = {name: self.chats.get(name, OpenChat()) for name in names[:MAX_COLUMNS]}

    def begin_answers(self) -> dict[str, Question]:
        """Mark the pending questions as being answered, and return them by name."""
        asked = {name: chat.begin_answer() for name, chat in self.chats.items()}
        return {name: question for name, question in asked.items() if question is not None}

    def end_answers(self, current: Mapping[str, Conversation]) -> None:
        """Mark answers as ended; they may have been dropped before."""
        for name, conversation in current.items():
            if name in self.chats:
                self.chats[name].end_answer(conversation)

    def stop(self) -> None:
        """Stop all answers, and keep their texts so far."""
        for chat in self.chats.values():
            chat.stop()
        if self.running is not None:
            self.running.stop()
            self.running = None

    def clear(self) -> None:
        """Start new conversations with the same models."""
        self.stop()
        self.statuses.clear()
        self.chats = {name: OpenChat() for name in self.chats}
