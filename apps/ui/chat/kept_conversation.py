"""The conversation that a browser keeps, so that a reload of the page continues it.

The browser keeps it for one tab. What it sends is a text that is checked here: Gradio does not see
the messages, so it extracts no files and components from them.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apps.ui.chat.answer_note import AnswerFacts
from apps.ui.chat.conversation import Conversation, Turn

MAX_KEPT_BYTES = 50_000
"""As a string in a JSON body: below the limit on calls of the page, with the settings."""
MAX_KEPT_TURNS = 512
_NAMES_BYTES = 2_000
"""For the names of the models, and the keys."""
STORAGE_KEY = "tuneserve-chat"
STORE_JS = f"(text) => {{ sessionStorage.setItem('{STORAGE_KEY}', text); }}"
RESTORE_JS = f"sessionStorage.getItem('{STORAGE_KEY}') || ''"


class _KeptTurn(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["user", "assistant"]
    text: str
    facts: AnswerFacts | None = None


class _KeptConversation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    turns: list[_KeptTurn] = Field(default=[], max_length=MAX_KEPT_TURNS)
    asked_model: str = ""
    pointed_id: str = ""
    model_id: str = ""


def pack_conversation(conversation: Conversation) -> str:
    """Return a conversation as the text that the browser keeps.

    The oldest questions are dropped, with their answers, beyond `MAX_KEPT_BYTES`.
    """
    turns: list[_KeptTurn] = []
    num_left = MAX_KEPT_BYTES - _NAMES_BYTES
    for turn in reversed(conversation.turns[-MAX_KEPT_TURNS:]):
        role: Literal["user", "assistant"] = "user" if turn.role == "user" else "assistant"
        kept_turn = _KeptTurn(role=role, text=turn.text, facts=turn.facts)
        num_left -= _measure(kept_turn.model_dump_json(exclude_defaults=True)) + 1
        if num_left < 0:
            break
        turns.insert(0, kept_turn)
    while turns and turns[0].role != "user":
        del turns[0]
    kept = _KeptConversation(
        turns=turns,
        asked_model=conversation.asked_model,
        pointed_id=conversation.pointed_id,
        model_id=conversation.model_id,
    )
    return kept.model_dump_json(exclude_defaults=True)


def _measure(text: str) -> int:
    """Return the bytes of a text as a string in a JSON body."""
    return len(json.dumps(text, ensure_ascii=False).encode())


def unpack_conversation(text: Any) -> Conversation:
    """Return the conversation that a browser kept; an empty one if the text is not valid."""
    if not isinstance(text, str):
        return Conversation()
    try:
        kept = _KeptConversation.model_validate_json(text)
    except ValidationError:
        return Conversation()
    turns = tuple(Turn(turn.role, turn.text, turn.facts) for turn in kept.turns)
    return Conversation(turns, kept.asked_model, kept.pointed_id, kept.model_id)
