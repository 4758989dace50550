import csv
import io
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from training.data.faults import RowFault
from training.data.readers import RowFile
from training.data.text.formats import KNOWN_KEYS, Row, choose_parser

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "How many loaves,\nin all?"}
ANSWER = {"role": "assistant", "content": 'Twelve, "and two" for the fox 🦊.'}
TOOLS = [{"type": "function", "function": {"name": "count_loaves", "parameters": {}}}]

RECORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", {"messages": [QUESTION, ANSWER]}),
    "completion": (
        "prompt_completion",
        {"prompt": QUESTION["content"], "completion": ANSWER["content"]},
    ),
    "TRL": ("prompt_completion", {"prompt": [QUESTION], "completion": [ANSWER]}),
    "Alpaca": (
        "alpaca",
        {"instruction": QUESTION["content"], "input": "", "output": ANSWER["content"]},
    ),
    "ShareGPT": (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": QUESTION["content"]},
                {"from": "gpt", "value": ANSWER["content"]},
            ]
        },
    ),
    "text": ("text", {"text": ANSWER["content"]}),
}


def write_jsonl(records: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def write_table(records: list[dict[str, Any]], separator: str = ",") -> str:
    """Return CSV as spreadsheets write it; lists become JSON text."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(records[0]), delimiter=separator)
    writer.writeheader()
    for record in records:
        cells = {k: json.dumps(v) if isinstance(v, list) else v for k, v in record.items()}
        writer.writerow(cells)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "JSONL": write_jsonl,
    "array": lambda records: json.dumps(records, indent=2),
    "CSV": write_table,
    "TSV": lambda records: write_table(records, "\t"),
    "semicolons": lambda records: write_table(records, ";"),
}


def read_rows(path: Path, **columns: str) -> tuple[str, list[Row]]:
    records = list(RowFile(path, (*KNOWN_KEYS, *columns.values())).read())
    parser = choose_parser(records[0][1], "auto", columns)
    return parser.format, [parser.parse(line, record) for line, record in records]


def parse(record: dict[str, Any]) -> Row:
    return choose_parser(record, "auto", {}).parse(1, record)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "marked"])
@pytest.mark.parametrize(
    ("case", "kind"),
    # In a cell, a prompt that looks like JSON stays text, because that may be intended.
    [(case, kind) for case in RECORDS for kind in WRITERS if case != "TRL" or kind[0] in "Ja"],
)
def test_each_format_is_read_from_each_kind_of_file(
    tmp_path: Path, case: str, kind: str, mark: bytes
) -> None:
    expected, record = RECORDS[case]
    file = tmp_path / "upload"  # no suffix reveals the format
    file.write_bytes(mark + WRITERS[kind]([record, record]).encode())
    found, rows = read_rows(file)
    assert found == expected
    assert len(rows) == 2
    if expected == "text":
        assert rows[1].text == ANSWER["content"]
    else:
        assert rows[1].messages == (QUESTION, ANSWER)
        assert rows[1].learned == (False, True)


def test_row_line_is_line_on_which_row_begins(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('text\n"a\nb"\n\nc\n')
    assert [row.line for row in read_rows(file)[1]] == [2, 5]
    file.write_text('{"text": "a"}\n\n{"text": "b"}')
    assert [row.line for row in read_rows(file)[1]] == [1, 3]
    file.write_text('\n[{"text": "a"},\n\n{"text":\n"b"}\n, {"text": "c"}]\n')
    assert [row.line for row in read_rows(file)[1]] == [2, 4, 6]


def test_quotes_in_tab_separated_text_are_plain_characters(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text('prompt\tcompletion\n"Twelve" said who?\tThe "baker"\nWhen?\t"Now"\n')
    _, rows = read_rows(file)
    assert rows[0].messages[0]["content"] == '"Twelve" said who?'
    assert [row.messages[1]["content"] for row in rows] == ['The "baker"', '"Now"']


def test_columns_map_keys_to_columns_of_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("id\ttext\tfrage\tantwort\n1\tno\tHow many?\tTwelve.\n")
    found, (row,) = read_rows(file, prompt="frage", completion="antwort")
    assert found == "prompt_completion"
    assert [message["content"] for message in row.messages] == ["How many?", "Twelve."]


def test_alpaca_input_follows_instruction() -> None:
    row = parse({"instruction": "Add.", "input": "1 and 2", "output": "3"})
    assert row.messages[0]["content"] == "Add.\n\n1 and 2"


@pytest.mark.parametrize("as_text", [False, True])
def test_alpaca_history_precedes_question_and_is_learned(as_text: bool) -> None:
    pairs: Any = [["How many loaves?", "Ten."], ["And rolls?", "Six."]]
    row = parse(
        {
            "instruction": "And in all?",
            "input": "",
            "output": "Sixteen.",
            "system": "Be brief.",
            "history": json.dumps(pairs) if as_text else pairs,
        }
    )
    assert row.messages[0] == SYSTEM
    assert [message["content"] for message in row.messages[1:]] == [
        *("How many loaves?", "Ten.", "And rolls?", "Six.", "And in all?", "Sixteen.")
    ]
    assert row.learned == (False, False, True, False, True, False, True)
    assert row.ignored == ()


@pytest.mark.parametrize("empty", [None, [], ""])
def test_alpaca_history_may_be_empty(empty: Any) -> None:
    row = parse({"instruction": "a", "output": "b", "history": empty})
    assert len(row.messages) == 2


def test_unknown_keys_are_named_unless_empty() -> None:
    row = parse(
        {
            "prompt": "a",
            "completion": "b",
            "id": 7,
            "source": "shop",
            "note": "",
            "k": None,
            "images": [],
            "chosen": None,
            "kto_tag": "",
        }
    )
    assert row.ignored == ("id", "source")
    row = parse({"conversations": [{"from": "gpt", "value": "a", "id": 3, "markdown": None}]})
    assert row.ignored == ("conversations[].id",)
    assert parse({"text": "a", "label": 1}).ignored == ("label",)
    assert parse({"prompt": "a", "completion": "b", "label": "bread"}).ignored == ("label",)


def test_mapped_column_is_used_instead_of_its_key() -> None:
    record = {"question": "a", "prompt": "old", "label": "0", "images": ["b"]}
    parser = choose_parser(record, "auto", {"prompt": "question", "completion": "label"})
    with pytest.raises(RowFault, match="^it has 'images': images, audio and video cannot be"):
        parser.parse(1, record)
    assert parser.parse(1, {**record, "images": None}).ignored == ("prompt",)


def test_chat_may_have_separate_system_message() -> None:
    row = parse({"system": "Be brief.", "messages": [QUESTION, ANSWER]})
    assert row.messages == (SYSTEM, QUESTION, ANSWER)


@pytest.mark.parametrize(
    ("flag", "is_learned"),
    [
        *(({key: value}, bool(value)) for key in ("weight", "loss_weight") for value in (0, 1.0)),
        *(({key: value}, value) for key in ("train", "loss") for value in (False, True)),
        ({"weight": 0, "train": False}, False),
        ({"train": None, "loss_weight": None}, True),
    ],
)
def test_flags_of_other_projects_select_learned_messages(
    flag: dict[str, Any], is_learned: bool
) -> None:
    chat = parse({"messages": [QUESTION, {**ANSWER, **flag}, ANSWER]})
    assert chat.learned == (False, is_learned, True)
    answer = {"from": "gpt", "value": "a"}
    question = {"from": "human", "value": "b", "train": False}
    assert parse({"conversations": [question, {**answer, **flag}, answer]}).learned == chat.learned


def test_openai_and_sharegpt_messages_are_read_under_either_key() -> None:
    question = {"from": "human", "value": QUESTION["content"]}
    answer = {"from": "chatgpt", "value": [{"type": "text", "value": ANSWER["content"]}]}
    expected = (QUESTION, ANSWER)
    assert parse({"messages": [question, answer]}).messages == expected
    assert parse({"conversations": [QUESTION, ANSWER]}).messages == expected
    assert parse({"conversations": [question, ANSWER]}).messages == expected


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + " " * 200_000,
        "<tool_call>" * 20_000,
        "<tool_call> </tool_call>" * 10_000,
        "<tool_response>" + " " * 200_000,
    ],
)
def test_blocks_are_found_in_linear_time(text: str) -> None:
    turns = [{"from": "human", "value": "x"}, {"from": "gpt", "value": text}]
    results = [{"from": "tool", "value": text}]
    began = time.process_time()
    with suppress(RowFault):
        parse({"conversations": turns + results, "tools": [{"name": "count"}]})
    assert time.process_time() - began < 1


def test_hermes_blocks_become_tool_calls_and_tool_messages() -> None:
    calls = [{"name": "count", "arguments": {"of": of}} for of in ("loaves", "rolls")]
    blocks = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    results = "<tool_response>\n12\n</tool_response>\n<tool_response>6</tool_response>"
    record = {
        "conversations": [
            {"from": "human", "value": "How many?"},
            {"from": "gpt", "value": f"Let me count.\n{blocks}"},
            {"from": "tool", "value": results},
            {"from": "function_call", "value": blocks, "weight": 0},
            {"from": "observation", "value": "none"},
            {"from": "gpt", "value": "Twelve and six."},
        ],
        "tools": json.dumps([{"name": "count", "parameters": {}}]),
    }
    row = parse(record)
    assert row.tools == ({"type": "function", "function": {"name": "count", "parameters": {}}},)
    parsed = [{"type": "function", "function": call} for call in calls]
    assert row.messages[1] == {
        "role": "assistant",
        "content": "Let me count.",
        "tool_calls": parsed,
    }
    assert row.messages[2:4] == (
        {"role": "tool", "content": "12"},
        {"role": "tool", "content": "6"},
    )
    assert row.messages[4] == {"role": "assistant", "content": None, "tool_calls": parsed}
    assert row.messages[5] == {"role": "tool", "content": "none"}
    assert row.learned == (False, True, False, False, False, False, True)
    without = parse({"conversations": [record["conversations"][1]]})
    assert without.messages[0]["content"] == f"Let me count.\n{blocks}"  # no tools: text


def test_weight_0_is_not_learned_and_developer_becomes_system() -> None:
    developer = {**SYSTEM, "role": "developer", "name": None}
    row = parse({"messages": [developer, {**ANSWER, "weight": 0}, QUESTION, ANSWER]})
    assert row.messages == (SYSTEM, ANSWER, QUESTION, ANSWER)
    assert row.learned == (False, False, False, True)


def test_assistant_messages_in_prompt_are_not_learned() -> None:
    row = parse({"prompt": [QUESTION, ANSWER, QUESTION], "completion": [ANSWER]})
    assert row.learned == (False, False, False, True)


def test_text_parts_are_joined_as_in_serving() -> None:
    parts = [{"type": "text", "text": "How many"}, {"type": "text", "text": "loaves?"}]
    row = parse({"messages": [{"role": "user", "content": parts}, ANSWER]})
    assert row.messages[0]["content"] == "How many\nloaves?"


@pytest.mark.parametrize("as_text", [False, True])
def test_tool_calls_are_parsed_from_openai_and_sharegpt(as_text: bool) -> None:
    arguments: Any = {"day": "Monday"}
    arguments = json.dumps(arguments) if as_text else arguments
    call = {"name": "count_loaves", "arguments": arguments}
    openai = parse(
        {
            "messages": [
                QUESTION,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "12"},
                ANSWER,
            ],
            "tools": TOOLS,
            "parallel_tool_calls": False,
        }
    )
    sharegpt = parse(
        {
            "system": "Be brief.",
            "conversations": [
                {"from": "human", "value": QUESTION["content"]},
                {"from": "function_call", "value": json.dumps(call) if as_text else call},
                {"from": "observation", "value": "12"},
                {"from": "gpt", "value": ANSWER["content"]},
            ],
            "tools": json.dumps(TOOLS),
        }
    )
    parsed = {"name": "count_loaves", "arguments": {"day": "Monday"}}
    assert openai.tools == sharegpt.tools == tuple(TOOLS)
    assert openai.messages[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": parsed}
    ]
    assert sharegpt.messages[2]["tool_calls"] == [{"type": "function", "function": parsed}]
    assert openai.messages[2] == {"role": "tool", "content": "12", "tool_call_id": "c1"}
    assert sharegpt.messages[0] == SYSTEM
    assert openai.learned == (False, True, False, True)


@pytest.mark.parametrize("size", [100, 65_530, 65_536, 65_540, 200_000])
def test_array_is_read_across_buffer_boundaries(tmp_path: Path, size: int) -> None:
    texts = ["ä🦊" * (size // 6), "b", "\n" * 50, "c" * size]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"text": text} for text in texts], ensure_ascii=False, indent=1))
    assert [record["text"] for _, record in RowFile(file).read()] == texts


def test_number_is_read_across_buffer_boundary(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    for pad in range(65_530, 65_537):
        file.write_text("[" + " " * pad + "123456]")
        assert [record for _, record in RowFile(file).read()] == [123456]
