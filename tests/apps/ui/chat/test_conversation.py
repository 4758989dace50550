"""The model that answers a conversation, and answers that are stopped."""

from dataclasses import replace
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.client.errors import AnswerFailedError, RequestRefusedError
from apps.client.text import Sampling
from apps.ui.chat.answer_note import AnswerFacts
from apps.ui.chat.conversation import (
    MAX_INACTIVE_CONVERSATIONS,
    AnswerStep,
    Conversation,
    OpenChat,
    Question,
    Turn,
    answer,
)
from apps.ui.chat.sampling_settings import AnswerSettings
from tests.apps.stub_api import StubApi, ask

BEGUN = Conversation(asked_model="latest", pointed_id="base-tuned")
ANSWERED = Conversation(
    (Turn("user", "first"), Turn("assistant", "Hello")), "latest", "base-tuned", "base-tuned"
)


SETTINGS = AnswerSettings("", Sampling(temperature=0.0, max_tokens=16), sends_earlier=True)


async def collect_answer(
    client: ApiClient, question: str, conversation: Conversation = BEGUN
) -> list[AnswerStep]:
    asked = conversation.add(Turn("user", question))
    return await collect_steps(client, make_question(asked))


async def collect_steps(client: ApiClient, question: Question) -> list[AnswerStep]:
    return [step async for step in answer(client, question)]


def find_facts(steps: list[AnswerStep]) -> AnswerFacts:
    facts = steps[-1].conversation.turns[-1].facts
    assert facts is not None
    return facts


def make_question(conversation: Conversation, **changes: Any) -> Question:
    return Question(conversation, SETTINGS, conversation.drop_unanswered(), **changes)


def test_streamed_answer_ends_with_note_of_its_model(api: StubApi) -> None:
    steps = ask(api, lambda client: collect_answer(client, "hello"))
    current = [step.conversation.turns[-1].text for step in steps[:3]]
    assert current[0] == "Hello "
    assert current[1] == "Hello there "
    content = steps[-1].conversation.to_chatbot()[-1]["content"]
    assert not isinstance(content, str)
    text, note = content
    assert text == current[-1]
    assert isinstance(note, gr.HTML)
    assert ">base-tuned</a></span> · <span>3 tokens" in note.value
    assert {step.conversation.model_id for step in steps} == {"base-tuned"}
    assert [step.note for step in steps if step.note] == []


def test_notes_of_page_are_not_sent_to_api() -> None:
    facts = AnswerFacts(model="base", num_tokens=1)
    turns = (Turn("user", "Hi"), Turn("assistant", "Hello", facts), Turn("user", "And now?"))
    assert Conversation(turns).to_messages() == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And now?"},
    ]


def test_refused_chat_raises(api: StubApi) -> None:
    with pytest.raises(RequestRefusedError, match=r"^all places are taken$"):
        ask(api, lambda client: collect_answer(client, "busy"))


def test_note_names_model_that_differs_from_displayed_one(api: StubApi) -> None:
    """This happens while the model that an alias points to is not yet loaded."""
    api.answering_models = ["older"]
    steps = ask(api, lambda client: collect_answer(client, "hello"))
    assert steps[-1].conversation.model_id == "older"
    assert "latest pointed to base-tuned when you asked, but older answered" in steps[0].note
    assert find_facts(steps).model == "older"
    assert len(api.bodies) == 1


@pytest.mark.parametrize("second", ["newer", "base-tuned"])
def test_answer_of_other_model_starts_new_conversation(api: StubApi, second: str) -> None:
    """Replicas may have different models loaded, so any of them may give the second answer."""
    api.answering_models = ["newer", second]
    steps = ask(api, lambda client: collect_answer(client, "second", ANSWERED))
    last = steps[-1].conversation
    assert [turn.text for turn in last.turns if turn.role == "user"] == ["second"]
    assert last.model_id == second
    assert find_facts(steps).model == second
    assert "newer answered instead of base-tuned; this is a new conversation" in steps[0].note
    assert [len(body["messages"]) for body in api.bodies] == [3, 1]


def test_question_without_earlier_messages_is_not_sent_to_the_other_model_again(
    api: StubApi,
) -> None:
    api.answering_models = ["newer"]
    asked = ANSWERED.add(Turn("user", "second"))
    question = make_question(asked)._replace(settings=replace(SETTINGS, sends_earlier=False))
    steps = ask(api, lambda client: collect_steps(client, question))
    assert [len(body["messages"]) for body in api.bodies] == [1]
    assert steps[-1].conversation.model_id == "newer"
    assert steps[-1].conversation.turns[0].text == "second"
    assert "this is a new conversation" in steps[0].note


def test_answer_is_continued_without_earlier_messages(api: StubApi) -> None:
    cut = ANSWERED.add(Turn("user", "second")).add(Turn("assistant", "Hello ", AnswerFacts()))
    settings = replace(SETTINGS, sends_earlier=False)
    question = make_question(cut, continues=True)._replace(settings=settings)
    ask(api, lambda client: collect_steps(client, question))
    sent = [message["content"] for message in api.bodies[0]["messages"]]
    assert sent == ["second", "Hello "]


def test_conversation_continues_when_only_alias_moved(
    api: StubApi,
) -> None:
    api.answering_models = ["base-tuned"]
    moved = Conversation(ANSWERED.turns, "latest", "newer", "base-tuned")
    steps = ask(api, lambda client: collect_answer(client, "second", moved))
    assert len(steps[-1].conversation.turns) == 4
    assert steps[0].note.startswith("latest pointed to newer when you asked")


def test_question_is_taken_once_and_its_answer_can_be_stopped() -> None:
    chat, asked = OpenChat(), BEGUN.add(Turn("user", "hello"))
    question = make_question(asked)
    assert chat.begin_answer() is None
    chat.ask(question)
    assert chat.is_busy
    assert chat.begin_answer() is question
    assert chat.begin_answer() is None
    current = asked.add(Turn("assistant", "Hel"))
    assert chat.update_answer(asked, current)
    assert chat.is_busy
    chat.stop()
    assert not chat.is_busy
    assert not chat.update_answer(current, asked.add(Turn("assistant", "Hello")))
    assert chat.conversation is current


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("num_kept", [0, 2])
def test_change_of_model_before_another_answer_keeps_the_answers(
    num_kept: int, is_cancelled: bool
) -> None:
    chat, before = OpenChat(), ANSWERED.add(Turn("user", "more")).add(Turn("assistant", "Yes"))
    chat.begin(before)
    asked = before.cut(num_kept).add(Turn("user", "changed"))
    chat.ask(Question(asked, SETTINGS, before, "changed"))
    if is_cancelled:
        chat.begin_answer()
        chat.end_answer(asked)
    assert chat.find_unanswered() == "changed"
    assert chat.switch_model("other")
    assert chat.conversation == Conversation(asked_model="other")
    assert not chat.switch_model(before.asked_model)
    assert chat.conversation == before


def test_partial_answer_is_kept_when_the_model_changes() -> None:
    chat = OpenChat()
    asked = BEGUN.add(Turn("user", "hello"))
    chat.ask(make_question(asked))
    chat.begin_answer()
    partial = asked.add(Turn("assistant", "Hel"))
    chat.update_answer(asked, partial)
    chat.switch_model("other")
    chat.switch_model(BEGUN.asked_model)
    assert chat.conversation == partial


def test_oldest_of_many_conversations_is_dropped() -> None:
    chat = OpenChat()
    names = [f"model-{number}" for number in range(MAX_INACTIVE_CONVERSATIONS + 2)]
    for name in names:
        chat.switch_model(name)
        chat.conversation = chat.conversation.add(Turn("user", "hi")).add(Turn("assistant", name))
    found = []
    for name in (names[1], names[0]):
        chat.switch_model(name)
        found.append(chat.conversation.turns[-1:])
    assert found == [(Turn("assistant", names[1]),), ()]


def test_answer_is_not_added_to_another_conversation() -> None:
    chat, asked = OpenChat(), BEGUN.add(Turn("user", "hello"))
    chat.ask(make_question(asked))
    chat.begin_answer()
    other = Conversation(asked_model="base")
    chat.begin(other)
    assert not chat.update_answer(asked, asked.add(Turn("assistant", "Hello")))
    chat.end_answer(asked)
    assert chat.conversation is other


def test_answer_names_run_step_and_speed(api: StubApi) -> None:
    api.origins["base-tuned"] = {"x-run-id": "ftjob-1", "x-checkpoint": "step-40"}
    facts = find_facts(ask(api, lambda client: collect_answer(client, "hello")))
    assert (facts.model, facts.run_id, facts.checkpoint) == ("base-tuned", "ftjob-1", "step-40")
    assert facts.num_tokens == 3
    assert facts.tokens_per_s is not None
    assert facts.tokens_per_s > 0
    assert not facts.is_cut


async def continue_answer(client: ApiClient, cut: Conversation) -> list[AnswerStep]:
    return await collect_steps(client, make_question(cut, continues=True))


def test_cut_answer_is_continued(api: StubApi) -> None:
    settings = AnswerSettings("Be brief", Sampling(max_tokens=1), sends_earlier=True)
    asked = BEGUN.add(Turn("user", "hello"))
    question = Question(asked, settings, BEGUN)
    cut = ask(api, lambda client: collect_steps(client, question))[-1].conversation
    assert cut.turns[-1].text == "Hello "
    assert cut.find_cut_answer() is cut.turns[-1]
    last = ask(api, lambda client: continue_answer(client, cut))[-1].conversation
    assert len(last.turns) == 2
    assert last.turns[-1].text.startswith("Hello there ")
    assert last.find_cut_answer() is None
    assert last.turns[-1].facts is not None
    assert last.turns[-1].facts.num_tokens == 3, "of the whole answer"
    assert [message["role"] for message in api.bodies[0]["messages"]] == ["system", "user"]
    assert api.bodies[-1]["messages"][-1] == {"role": "assistant", "content": "Hello "}


def test_other_model_does_not_continue_answer(api: StubApi) -> None:
    facts = AnswerFacts(model="base-tuned", is_cut=True)
    cut = Conversation(
        (Turn("user", "hello"), Turn("assistant", "Hello ", facts)),
        "latest",
        "base-tuned",
        "base-tuned",
    )
    api.answering_models = ["newer"]
    with pytest.raises(AnswerFailedError, match="newer would continue the answer of base-tuned"):
        ask(api, lambda client: continue_answer(client, cut))
