import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from training.dataset import (
    DataError,
    EncodedRow,
    Row,
    encode_chat,
    encode_row,
    encode_rows,
    parse_row,
    read_rows,
)

QUESTION = {"role": "user", "content": "How many loaves?"}
ANSWER = {"role": "assistant", "content": "Twelve, and two for the fox."}
CHAT = {"messages": [QUESTION, ANSWER]}


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def learned_text(row: EncodedRow, tokenizer: PreTrainedTokenizerBase) -> str:
    return str(
        tokenizer.decode([t for t, on in zip(row.input_ids, row.learned, strict=True) if on])
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (CHAT, "chat"),
        ({"prompt": "How many loaves?", "completion": ANSWER["content"]}, "prompt_completion"),
        ({"instruction": "How many loaves?", "input": "", "output": ANSWER["content"]}, "alpaca"),
        ({"text": "Twelve loaves."}, "text"),
    ],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_the_format_is_recognised(
    tmp_path: Path, record: dict[str, Any], expected: str, as_array: bool
) -> None:
    file = tmp_path / "rows"
    file.write_text(json.dumps([record, record]) if as_array else f"{json.dumps(record)}\n" * 2)
    found, rows = read_rows(file)
    assert found == expected
    assert len(rows) == 2
    if expected != "text":
        assert rows[0].messages == (QUESTION, ANSWER)


def test_alpaca_input_follows_the_instruction() -> None:
    row = parse_row(1, {"instruction": "Add.", "input": "1 and 2", "output": "3"}, "alpaca")
    assert row.messages[0]["content"] == "Add.\n\n1 and 2"


def test_only_the_assistants_tokens_are_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    system = {"role": "system", "content": "Be brief."}
    row = encode_row(Row(1, (system, QUESTION, ANSWER, QUESTION, ANSWER)), tokenizer, 128)
    assert learned_text(row, tokenizer) == f"{ANSWER['content']}<|im_end|>" * 2


def test_what_is_trained_is_what_a_chat_will_see(tokenizer: PreTrainedTokenizerBase) -> None:
    input_ids, learned = encode_chat([QUESTION, ANSWER], tokenizer)
    prompt = tokenizer.apply_chat_template([QUESTION], add_generation_prompt=True, return_dict=True)
    assert input_ids[: learned.index(True)] == prompt["input_ids"]


def test_a_template_without_markers_learns_the_same(tokenizer: PreTrainedTokenizerBase) -> None:
    marked = encode_chat([QUESTION, ANSWER, QUESTION, ANSWER], tokenizer)
    template = tokenizer.get_chat_template()
    for marker in ("{%- generation -%}", "{%- endgeneration -%}"):
        assert marker in template
        template = template.replace(marker, "")
    plain = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    plain.chat_template = template
    ids, learned = encode_chat([QUESTION, ANSWER, QUESTION, ANSWER], plain)
    assert ids == marked[0]
    # Without markers the line break after an answer counts as the assistant's too.
    differing = {ids[i] for i in range(len(ids)) if learned[i] != marked[1][i]}
    assert {str(tokenizer.decode([token])) for token in differing} <= {"\n"}


def test_plain_text_is_learned_wholly_and_ended(tokenizer: PreTrainedTokenizerBase) -> None:
    row = encode_row(Row(1, text="A small model."), tokenizer, 128)
    assert all(row.learned)
    assert row.num_learned == len(row.input_ids) - 1
    assert row.input_ids[-1] == tokenizer.eos_token_id


def test_a_long_row_is_truncated_and_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    long = {"role": "assistant", "content": "loaves " * 300}
    (row,) = encode_rows([Row(1, (QUESTION, long))], tokenizer, 64)
    assert len(row.input_ids) == len(row.learned) == 64
    assert row.truncated_tokens > 0


def test_a_row_with_nothing_left_to_learn_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    long = {"role": "user", "content": "loaves " * 300}
    with pytest.raises(DataError, match=r"line 7: nothing is left to learn.*first 64 tokens"):
        encode_rows([Row(7, (long, ANSWER))], tokenizer, 64)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": []}, "'messages' should be a list with at least one message"),
        ({"messages": "hi"}, "'messages' should be a list"),
        ({"messages": [QUESTION]}, "no message is the assistant's"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 1 has the role 'robot'"),
        ({"messages": [QUESTION, {"role": "assistant"}]}, "'content' is null, expected text"),
        ({"messages": [QUESTION, {"role": "assistant", "content": " "}]}, "'content' is empty"),
        ({"messages": [QUESTION, {**ANSWER, "weight": 0}]}, "keys ['weight'], which are not"),
        ({"messages": ["hi"]}, 'message 1 is "hi", expected an object'),
        ([1], "expected an object, found [1]"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, record: Any, message: str) -> None:
    file = write_lines(tmp_path / "rows.jsonl", CHAT, record, CHAT)
    with pytest.raises(DataError) as caught:
        read_rows(file)
    assert "rows.jsonl: 1 of 3 rows cannot be used: line 2: " in str(caught.value)
    assert message in str(caught.value)


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(CHAT) + "\n{oops\n\n" + json.dumps(CHAT) + "\nnull,\n")
    with pytest.raises(DataError, match=r"2 of 4 rows.*line 2: not JSON.*line 5: not JSON"):
        read_rows(file)


def test_only_the_first_twenty_faults_are_listed(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "rows.jsonl", CHAT, *[{"messages": []}] * 30)
    with pytest.raises(DataError, match="30 of 31 rows.*line 21: .*; and 10 more"):
        read_rows(file)


def test_a_row_of_an_array_is_named_by_the_line_it_begins_on(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([CHAT, {"messages": []}], indent=1))
    begin = file.read_text()[: file.read_text().index('"messages": []')].count("\n")
    with pytest.raises(DataError, match=f"line {begin}: 'messages' should"):
        read_rows(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b"\n\n", "holds no rows"),
        (b"[]", "holds no rows"),
        (b"\xff\xfe\x00", "is not text: byte 0 is not UTF-8"),
        (b'{"question": "x"}', r"the first row has the keys \['question'\]; expected"),
        (b'[{"text": "x"}', "line 1: expected ',' or ']'"),
        (b'[{"text": "x"}]\n[{"text": "y"}]', "line 2: expected nothing after the array's"),
        (b"[" * 100_000, "line 1: cannot be read"),
        (b'{"text": ' + b"[" * 100_000, "line 1: cannot be read"),
        (b'{"text": "x", "n": ' + b"1" * 5_000 + b"}", "line 1: cannot be read"),
        (rb'{"text": "\ud800"}', "line 1: 'text' has half a character"),
        (b'[{"text": "x"},\n oops]', "line 2: not JSON"),
        (b"3", "the first row has 3; expected"),
    ],
)
def test_a_file_without_rows_of_ours_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(file)


def test_a_row_that_the_template_refuses_is_named(tokenizer: PreTrainedTokenizerBase) -> None:
    strict = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    strict.chat_template = "{{ raise_exception('no system messages') }}"
    with pytest.raises(DataError, match="line 3: the model's chat template refuses it: no system"):
        encode_rows([Row(3, (QUESTION, ANSWER))], strict, 64)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file at .*gone.jsonl"):
        read_rows(tmp_path / "gone.jsonl")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(CHAT).encode())
    assert len(read_rows(file)[1]) == 1
