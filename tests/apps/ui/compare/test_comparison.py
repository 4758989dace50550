"""The columns of the page "Compare"."""

from apps.client.text import Sampling
from apps.ui.chat.conversation import Conversation, Question, Turn
from apps.ui.chat.sampling_settings import AnswerSettings
from apps.ui.compare.comparison import Comparison


def ask(comparison: Comparison, name: str) -> Question:
    asked = Conversation((Turn("user", "hello"),), name)
    question = Question(
        asked, AnswerSettings("", Sampling(), sends_earlier=True), Conversation(asked_model=name)
    )
    comparison.chats[name].ask(question)
    return question


def test_models_that_stay_keep_their_conversations() -> None:
    comparison = Comparison()
    comparison.choose(["a", "b"])
    comparison.chats["b"].begin(Conversation((Turn("user", "hello"),), "b"))
    comparison.choose(["b", "c"])
    assert comparison.names == ["b", "c"]
    assert len(comparison.chats["b"].conversation.turns) == 1
    comparison.clear()
    assert comparison.names == ["b", "c"]
    assert [len(chat.conversation.turns) for chat in comparison.chats.values()] == [0, 0]


def test_at_most_four_models_are_compared() -> None:
    comparison = Comparison()
    comparison.choose(list("abcde"))
    assert comparison.names == list("abcd")


def test_comparison_is_busy_until_each_answer_has_ended() -> None:
    comparison = Comparison()
    comparison.choose(["a", "b"])
    question = ask(comparison, "a")
    assert comparison.is_busy
    assert comparison.begin_answers() == {"a": question}
    assert comparison.begin_answers() == {}
    assert comparison.is_busy
    comparison.end_answers({"a": question.conversation, "gone": Conversation()})
    assert not comparison.is_busy


def test_choice_of_other_models_drops_answers() -> None:
    comparison = Comparison()
    comparison.choose(["a", "b"])
    ask(comparison, "a")
    comparison.choose(["a", "c"])
    assert not comparison.is_busy
    assert comparison.begin_answers() == {}
