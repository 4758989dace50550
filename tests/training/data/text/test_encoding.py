from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.data.chat.rendering import ChatSettings
from training.data.faults import RowFault
from training.data.text.encoding import RowEncoder, TokenSample
from training.data.text.formats import Row, choose_parser
from training.data.text.preview import split_tokens

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "How many loaves?"}
ANSWER = {"role": "assistant", "content": "Twelve, and two for the fox."}
OTHER = {"role": "assistant", "content": "Grüße 🚀"}
SILENT = {**OTHER, "weight": 0}
TOOL = {"type": "function", "function": {"name": "count_loaves"}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "count_loaves", "arguments": '{"day": "Monday"}'}}],
}

TOOL_TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat(*messages: dict[str, Any], line: int = 1, **more: Any) -> Row:
    record = {"messages": list(messages), **more}
    return choose_parser(record, "chat", {}).parse(line, record)


def encode_rows(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase
) -> list[TokenSample | RowFault]:
    with RowEncoder(tokenizer) as encoder:
        return [encoded for _, encoded in encoder.encode([rows])]


def encode(row: Row, tokenizer: PreTrainedTokenizerBase) -> TokenSample:
    (encoded,) = encode_rows([row], tokenizer)
    if isinstance(encoded, RowFault):
        raise encoded
    return encoded


def with_template(tokenizer: PreTrainedTokenizerBase, template: str | None) -> Any:
    other = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    other.chat_template = template
    return other


def without_markers(tokenizer: PreTrainedTokenizerBase) -> Any:
    template = str(tokenizer.get_chat_template())
    for marker in ("{%- generation -%}", "{%- endgeneration -%}"):
        assert marker in template
        template = template.replace(marker, "")
    return with_template(tokenizer, template)


def learned_text(row: TokenSample, tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(row.input_ids[row.learned].tolist()))


def test_only_assistant_tokens_are_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    row = encode(chat(SYSTEM, QUESTION, ANSWER, QUESTION, ANSWER), tokenizer)
    assert learned_text(row, tokenizer) == f"{ANSWER['content']}<|im_end|>" * 2


def test_trained_tokens_equal_chat_template_output(tokenizer: PreTrainedTokenizerBase) -> None:
    row = encode(chat(QUESTION, ANSWER), tokenizer)
    prompt = tokenizer.apply_chat_template([QUESTION], add_generation_prompt=True, return_dict=True)
    assert row.input_ids[: row.learned.argmax()].tolist() == prompt["input_ids"]
    whole = tokenizer.apply_chat_template(
        [QUESTION, ANSWER], return_dict=True, return_assistant_tokens_mask=True
    )
    assert row.input_ids.tolist() == whole["input_ids"]
    assert row.learned.tolist() == [bool(mark) for mark in whole["assistant_masks"]]


def test_template_without_markers_learns_same_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    row = chat(QUESTION, ANSWER, QUESTION, ANSWER)
    marked, plain = encode(row, tokenizer), encode(row, without_markers(tokenizer))
    assert plain.input_ids.tolist() == marked.input_ids.tolist()
    assert plain.learned.tolist() == marked.learned.tolist()


def test_message_of_weight_0_is_not_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    row = chat(QUESTION, SILENT, ANSWER, QUESTION, SILENT)
    end = f"{ANSWER['content']}<|im_end|>"
    assert learned_text(encode(row, tokenizer), tokenizer) == end
    assert learned_text(encode(row, without_markers(tokenizer)), tokenizer) == end


def test_weight_0_applies_to_several_marked_blocks(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}[{% generation %}{{ m.content }}"
        "{% endgeneration %}|{% generation %}!{% endgeneration %}]{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    several = with_template(tokenizer, template)
    row = encode(chat(QUESTION, SILENT, ANSWER), several)
    assert learned_text(row, tokenizer) == f"{ANSWER['content']}!<|im_end|>"


def test_answers_are_found_if_template_rewrites_each_turn(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Each answer is a separate sample, after the prompt that serving builds."""
    rewriting = with_template(
        tokenizer, "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}"
    )
    first, second = encode_rows([chat(QUESTION, ANSWER, QUESTION, OTHER)], rewriting)
    assert isinstance(first, TokenSample)
    assert isinstance(second, TokenSample)
    assert first.is_part
    assert second.is_part
    assert learned_text(first, tokenizer) == f"{ANSWER['content']}<|im_end|>"
    assert learned_text(second, tokenizer) == f"{OTHER['content']}<|im_end|>"
    served = rewriting.apply_chat_template([QUESTION, ANSWER, QUESTION], tokenize=False)
    assert tokenizer.decode(second.input_ids[~second.learned].tolist()) == served


def test_learned_turns_last_learns_only_last_answer(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    settings = ChatSettings("last", end_ids=(tokenizer.eos_token_id,))
    rows = [chat(QUESTION, ANSWER, QUESTION, OTHER, QUESTION, SILENT)]
    with RowEncoder(tokenizer, settings) as encoder:
        ((_, encoded),) = encoder.encode([rows])
    assert isinstance(encoded, TokenSample)
    assert learned_text(encoded, tokenizer) == f"{OTHER['content']}<|im_end|>"


def test_answer_omitted_by_template_is_rejected(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    omitting = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(RowFault, match="^the content of message 2 is missing"):
        encode(chat(QUESTION, ANSWER), with_template(tokenizer, omitting))


def test_tools_are_rendered_and_tool_calls_are_learned(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with_tools = with_template(tokenizer, TOOL_TEMPLATE)
    result = {"role": "tool", "content": "12"}
    row = encode(chat(QUESTION, CALL, result, ANSWER, tools=[TOOL]), with_tools)
    assert str(tokenizer.decode(row.input_ids.tolist())).startswith("<tools>[{")
    assert learned_text(row, tokenizer) == (
        '<call>{"name": "count_loaves", "arguments": {"day": "Monday"}}</call><|im_end|>'
        f"{ANSWER['content']}<|im_end|>"
    )


def test_unrendered_tool_call_is_rejected(tokenizer: PreTrainedTokenizerBase) -> None:
    omitting = TOOL_TEMPLATE.replace("<call>{{ c.function | tojson }}</call>", "")
    with pytest.raises(RowFault, match="^the tool 'count_loaves' or a call of it is missing"):
        encode(chat(QUESTION, CALL, tools=[TOOL]), with_template(tokenizer, omitting))


def test_row_rejected_by_template_does_not_affect_other_rows(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    strict = with_template(
        tokenizer,
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}"
        "{% endif %}" + TOOL_TEMPLATE,
    )
    good, bad = chat(QUESTION, ANSWER), chat(SYSTEM, QUESTION, ANSWER)
    first, second, third = encode_rows([good, bad, good], strict)
    assert isinstance(first, TokenSample)
    assert isinstance(third, TokenSample)
    assert str(second) == "the model's chat template refuses it: no system messages"


@pytest.mark.parametrize("kind", ["marked", "plain", "no template", "text"])
def test_batch_of_rows_equals_rows_encoded_separately(
    tokenizer: PreTrainedTokenizerBase, kind: str
) -> None:
    contents = ["a", "Grüße 🙂🚀", "x" * 300, " spaces  ", "你好", "<|im_end|> in it", "\n\n"]
    rows = [
        chat(QUESTION, {**ANSWER, "content": f"{content}."}, line=line)
        for line, content in enumerate(contents)
    ]
    if kind == "text":
        rows = [Row(line, text=content) for line, content in enumerate(contents)]
    other = {
        "plain": without_markers(tokenizer),
        "no template": with_template(tokenizer, None),
    }.get(kind, tokenizer)
    together = encode_rows(rows, other)
    assert len(together) == len(rows)
    for row, encoded in zip(rows, together, strict=True):
        assert isinstance(encoded, TokenSample)
        alone = encode(row, other)
        assert encoded.line == row.line
        assert encoded.input_ids.tolist() == alone.input_ids.tolist()
        assert encoded.learned.tolist() == alone.learned.tolist()


def test_prompt_and_answer_are_joined_without_template(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    base = with_template(tokenizer, None)
    row = encode(chat(QUESTION, ANSWER), base)
    assert learned_text(row, tokenizer) == f"{ANSWER['content']}<|im_end|>"
    assert str(tokenizer.decode(row.input_ids.tolist())) == (
        f"{QUESTION['content']}{ANSWER['content']}<|im_end|>"
    )
    with pytest.raises(RowFault, match="^the base model has no chat template, so only rows of one"):
        encode(chat(SYSTEM, QUESTION, ANSWER), base)


def test_plain_text_is_learned_with_end_token(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    row = encode(Row(1, text="A small model."), tokenizer)
    assert row.learned.all()
    assert row.num_targets == len(row.input_ids) - 1
    assert row.input_ids[-1] == tokenizer.eos_token_id


def test_split_tokens_returns_text_of_each_token(tokenizer: PreTrainedTokenizerBase) -> None:
    row = encode(chat({"role": "user", "content": "你好?"}, OTHER), tokenizer)
    pieces = split_tokens(row, tokenizer)
    assert "".join(text for text, _ in pieces) == (
        "<|im_start|>user\n你好?<|im_end|>\n<|im_start|>assistant\nGrüße 🚀<|im_end|>\n"
    )
    assert "".join(text for text, learned in pieces if learned) == "Grüße 🚀<|im_end|>"


def test_split_tokens_keeps_replacement_characters(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    text = "\ufffd" * 50 + "é\ufffdé"
    row = encode(Row(1, text=text), tokenizer)
    pieces = split_tokens(row, tokenizer)
    assert "".join(piece for piece, _ in pieces) == f"{text}{tokenizer.eos_token}"
    assert len(pieces) > 30
    assert all(len(piece) <= 4 for piece, _ in pieces[:-1])


def test_character_of_several_tokens_is_learned_completely(
    tokenizer: PreTrainedTokenizerBase, tiny_model: Path
) -> None:
    """The library's own mask covers only the first token of a character that ends a span."""
    ending = with_template(
        tokenizer,
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    )
    row = encode(chat(QUESTION, {**ANSWER, "content": "ok 🦊"}), ending)
    assert learned_text(row, tokenizer) == "ok 🦊<|im_end|>"


def test_only_marked_tokens_and_end_token_are_learned(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %} POST<|im_end|>{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    row = encode(chat(QUESTION, ANSWER), with_template(tokenizer, template))
    assert learned_text(row, tokenizer) == f"{ANSWER['content']}<|im_end|>"


def test_total_length_of_separate_prompts_is_limited(tokenizer: PreTrainedTokenizerBase) -> None:
    """With this template, each answer is a sample with the whole prompt, which ends in a space."""
    joined = with_template(
        tokenizer,
        "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else %}"
        "A: {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}A: {% endif %}",
    )
    turns = [QUESTION, {**ANSWER, "content": "the baker " * 300}] * 200
    with pytest.raises(
        RowFault,
        match="^each of its answers is learned after a prompt of its own, .* set "
        "learned_turns to 'last'",
    ):
        encode(chat(*turns), joined)
