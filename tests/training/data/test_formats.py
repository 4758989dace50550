import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.data.formats import KNOWN_KEYS, Row, choose_parser
from training.data.readers import RowFile

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
    """Write CSV as spreadsheets do; lists become JSON text."""
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
    # In a cell, a prompt that looks like JSON is text: it may well be meant so.
    [(case, kind) for case in RECORDS for kind in WRITERS if case != "TRL" or kind[0] in "Ja"],
)
def test_every_format_comes_in_every_kind_of_file(
    tmp_path: Path, case: str, kind: str, mark: bytes
) -> None:
    expected, record = RECORDS[case]
    file = tmp_path / "upload"  # no suffix says what it is
    file.write_bytes(mark + WRITERS[kind]([record, record]).encode())
    found, rows = read_rows(file)
    assert found == expected
    assert len(rows) == 2
    if expected == "text":
        assert rows[1].text == ANSWER["content"]
    else:
        assert rows[1].messages == (QUESTION, ANSWER)
        assert rows[1].learned == (False, True)


def test_lines_are_those_on_which_rows_begin(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('text\n"a\nb"\n\nc\n')
    assert [row.line for row in read_rows(file)[1]] == [2, 5]
    file.write_text('{"text": "a"}\n\n{"text": "b"}')
    assert [row.line for row in read_rows(file)[1]] == [1, 3]
    file.write_text('\n[{"text": "a"},\n\n{"text":\n"b"}\n, {"text": "c"}]\n')
    assert [row.line for row in read_rows(file)[1]] == [2, 4, 6]


def test_quotes_in_tab_separated_text_may_be_plain_characters(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text('prompt\tcompletion\n"Twelve" said who?\tThe "baker"\nWhen?\t"Now"\n')
    _, rows = read_rows(file)
    assert rows[0].messages[0]["content"] == '"Twelve" said who?'
    assert [row.messages[1]["content"] for row in rows] == ['The "baker"', '"Now"']


def test_columns_map_our_keys_to_theirs(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("id\ttext\tfrage\tantwort\n1\tno\tHow many?\tTwelve.\n")
    found, (row,) = read_rows(file, prompt="frage", completion="antwort")
    assert found == "prompt_completion"
    assert [message["content"] for message in row.messages] == ["How many?", "Twelve."]


def test_alpaca_input_follows_the_instruction() -> None:
    row = parse({"instruction": "Add.", "input": "1 and 2", "output": "3"})
    assert row.messages[0]["content"] == "Add.\n\n1 and 2"


def test_weight_0_is_not_learned_and_developer_means_system() -> None:
    developer = {**SYSTEM, "role": "developer", "name": None}
    row = parse({"messages": [developer, {**ANSWER, "weight": 0}, QUESTION, ANSWER]})
    assert row.messages == (SYSTEM, ANSWER, QUESTION, ANSWER)
    assert row.learned == (False, False, False, True)


def test_the_assistants_words_in_a_prompt_are_not_learned() -> None:
    row = parse({"prompt": [QUESTION, ANSWER, QUESTION], "completion": [ANSWER]})
    assert row.learned == (False, False, False, True)


def test_text_parts_are_joined_as_in_serving() -> None:
    parts = [{"type": "text", "text": "How many"}, {"type": "text", "text": "loaves?"}]
    row = parse({"messages": [{"role": "user", "content": parts}, ANSWER]})
    assert row.messages[0]["content"] == "How many\nloaves?"


@pytest.mark.parametrize("as_text", [False, True])
def test_tool_calls_are_parsed_from_openai_and_from_sharegpt(as_text: bool) -> None:
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
def test_an_array_is_read_whole_over_the_bounds_of_the_buffer(tmp_path: Path, size: int) -> None:
    texts = ["ä🦊" * (size // 6), "b", "\n" * 50, "c" * size]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"text": text} for text in texts], ensure_ascii=False, indent=1))
    assert [record["text"] for _, record in RowFile(file).read()] == texts


def test_a_number_over_the_bound_of_the_buffer_is_one(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    for pad in range(65_530, 65_537):
        file.write_text("[" + " " * pad + "123456]")
        assert [record for _, record in RowFile(file).read()] == [123456]
