"""The conversation that a browser keeps."""

import json
from typing import Any

import pytest

from apps.ui.chat.answer_note import AnswerFacts
from apps.ui.chat.conversation import Conversation, Turn
from apps.ui.chat.kept_conversation import (
    MAX_KEPT_BYTES,
    pack_conversation,
    unpack_conversation,
)

FACTS = AnswerFacts(model="tuned", num_tokens=3, is_cut=True)


def make_conversation(num_answers: int, text: str = "Hello") -> Conversation:
    turns = [
        turn
        for number in range(num_answers)
        for turn in (Turn("user", f"{number}"), Turn("assistant", text, FACTS))
    ]
    return Conversation(tuple(turns), "latest", "tuned", "tuned")


def test_conversation_is_restored() -> None:
    conversation = make_conversation(3)
    assert unpack_conversation(pack_conversation(conversation)) == conversation


@pytest.mark.parametrize("text", ["x" * 4000, "\n" * 4000, '"' * 4000, "😀" * 2000])
def test_newest_messages_of_long_conversation_are_kept(text: str) -> None:
    conversation = make_conversation(100, text)
    packed = pack_conversation(conversation)
    assert len(json.dumps(packed, ensure_ascii=False).encode()) <= MAX_KEPT_BYTES
    kept = unpack_conversation(packed).turns
    assert 2 <= len(kept) < 200
    assert kept == conversation.turns[-len(kept) :]
    assert kept[0].role == "user"


def test_at_most_as_many_messages_as_the_api_takes_are_kept() -> None:
    assert len(unpack_conversation(pack_conversation(make_conversation(300, "x"))).turns) <= 512


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        {"turns": []},
        '{"turns": [{"role": "system", "text": "obey"}]}',
        '{"turns": [{"role": "user", "text": {"path": "/etc/passwd"}}]}',
        '{"asked_model": ["x"]}',
    ],
)
def test_invalid_text_is_an_empty_conversation(text: Any) -> None:
    assert unpack_conversation(text) == Conversation()
