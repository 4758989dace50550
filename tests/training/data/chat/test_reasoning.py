from typing import Any

import pytest

from tests.chat_templates import FAMILIES
from tests.test_chat_families import encode, find_end_ids, make_tokenizer
from training.data.chat.reasoning import AnswerWithReasoning, insert_reasoning
from training.data.chat.rendering import ChatSettings
from training.data.faults import RowFault
from training.data.text.encoding import TokenSample
from training.data.text.formats import choose_parser

QUESTION = {"role": "user", "content": "How many?"}
INLINE = {"role": "assistant", "content": "<think>\nI count.\n</think>\n\nTwelve."}
KEYED = {"role": "assistant", "content": "Twelve.", "reasoning_content": "I count."}


def learn(name: str, answer: dict[str, Any], use: Any = "learn") -> tuple[str, str]:
    """Return the learned part of a row, and the whole row."""
    family = FAMILIES[name]
    tokenizer = make_tokenizer(family)
    record = {"messages": [QUESTION, answer]}
    row = choose_parser(record, "chat", {}).parse(1, record)
    settings = ChatSettings(reasoning=use, end_ids=find_end_ids(tokenizer, family))
    (encoded,) = encode(tokenizer, row, settings)
    assert isinstance(encoded, TokenSample)
    learned = encoded.input_ids[encoded.learned].tolist()
    return tokenizer.decode(learned), tokenizer.decode(encoded.input_ids.tolist())


@pytest.mark.parametrize("answer", [INLINE, KEYED])
@pytest.mark.parametrize(
    ("name", "learned"),
    [
        ("chatml", "<think>\nI count.\n</think>\n\nTwelve.<|im_end|>"),
        ("qwen 3", "<think>\nI count.\n</think>\n\nTwelve.<|im_end|>"),
        ("qwen 3.5", "I count.\n</think>\n\nTwelve.<|im_end|>"),
        ("deepseek r1", "I count.\n</think>\n\nTwelve.<|eos|>"),
        ("kimi k2 thinking", "<think>I count.</think>Twelve.<|im_end|>"),
        ("magistral", "[THINK]I count.[/THINK]Twelve.</s>"),
        ("gemma 4", "<|channel>thought\nI count.\n<channel|>Twelve.<turn|>"),
    ],
)
def test_reasoning_is_learned_in_format_of_model(
    name: str, answer: dict[str, Any], learned: str
) -> None:
    assert learn(name, answer)[0] == learned


@pytest.mark.parametrize("name", ["chatml", "qwen 3", "deepseek r1", "kimi k2 thinking"])
def test_masked_reasoning_is_input_but_not_learned(name: str) -> None:
    learned, whole = learn(name, KEYED, "mask")
    assert "I count." in whole
    assert "I count." not in learned
    assert "Twelve." in learned


@pytest.mark.parametrize("answer", [INLINE, KEYED])
@pytest.mark.parametrize("name", ["chatml", "qwen 3", "qwen 3.5", "deepseek r1"])
def test_dropped_reasoning_is_not_in_row(name: str, answer: dict[str, Any]) -> None:
    learned, whole = learn(name, answer, "drop")
    assert "I count." not in whole
    assert "Twelve." in learned


def test_reasoning_after_prompt_without_reasoning_is_rejected() -> None:
    with pytest.raises(RowFault, match="^message 2 has reasoning, but the prompt.*template_argum"):
        learn("deepseek v3.1", KEYED)


def test_reasoning_for_model_without_reasoning_is_rejected() -> None:
    with pytest.raises(RowFault, match="^message 2 has reasoning, which .* does not write"):
        insert_reasoning("assistant:", "Twelve.", "I count.", "Twelve.", "{{ messages }}", 1)


@pytest.mark.parametrize(
    ("prompt", "answer", "shown"),
    [
        ("<think>\n", "Twelve.", "\n</think>\n\nTwelve."),
        ("<think>", "Twelve.", "</think>Twelve."),
        ("<think>\n", "</think>Twelve.", "</think>Twelve."),
        ("assistant:", "Twelve.", "Twelve."),
    ],
)
def test_reasoning_opened_by_prompt_is_closed(prompt: str, answer: str, shown: str) -> None:
    found = insert_reasoning(prompt, answer, None, "Twelve.", "", 1)
    assert found == AnswerWithReasoning(shown, None, is_changed=shown != answer)


@pytest.mark.parametrize("use", ["learn", "mask"])
@pytest.mark.parametrize("name", ["deepseek r1", "qwen 3", "kimi k2 thinking", "chatml"])
def test_answer_may_repeat_its_reasoning(name: str, use: Any) -> None:
    content = "The capital of France is Paris, of course."
    answer = {"role": "assistant", "content": content, "reasoning_content": "Paris"}
    learned, whole = learn(name, answer, use)
    assert content in learned
    assert whole.count("Paris") == 2
    assert learned.count("Paris") == (2 if use == "learn" else 1)


@pytest.mark.parametrize("name", ["deepseek r1", "nemotron 3", "qwen 3.5"])
@pytest.mark.parametrize("content", ["<table><tr>1</tr></table>", "<b>bold</b>", "<", "assistant"])
def test_answer_that_begins_like_its_prompt_is_learned_completely(name: str, content: str) -> None:
    learned, _ = learn(name, {"role": "assistant", "content": content})
    end = FAMILIES[name].ends[0]
    assert learned.endswith(f"{content}{end}")
    assert learned.removesuffix(f"{content}{end}").strip() == "</think>"


@pytest.mark.parametrize("name", ["deepseek r1", "qwen 3"])
def test_answer_with_reasoning_tags_is_rejected_if_template_cuts_it(name: str) -> None:
    content = "The tag <think> begins and </think> ends the reasoning of a model."
    with pytest.raises(RowFault, match="^the content of message 2 is missing"):
        learn(name, {"role": "assistant", "content": content})
