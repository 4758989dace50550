"""Unusable training files: each is rejected with a message that explains what to do."""

import bz2
import gzip
import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from training.data import row_limits
from training.data.faults import DataError
from training.data.readers import RowFile
from training.data.row_stream import RowStream
from training.data.text.reader import TextReader
from training.spec import TrainingSpec

GOOD = {"prompt": "How many loaves?", "completion": "Twelve."}
USER = {"role": "user", "content": "How many?"}
ANSWER = {"role": "assistant", "content": "Twelve."}
CALL = {"function": {"name": "count_loaves", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "count_loaves"}}


def refuse(path: Path, content: bytes, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> str:
    """Write a file, read all of it, and return the message of its rejection."""
    path.write_bytes(content)
    spec = TrainingSpec.model_validate({"base_model": "m", "train_file": str(path), **settings})
    source = RowFile(path, ("prompt", "text", "messages", *spec.columns.values()))
    with pytest.raises(DataError) as caught:
        list(RowStream(source, TextReader(source, spec, tokenizer), 128, spec.overlong).encode())
    message = str(caught.value)
    assert str(path.parent) not in message
    return message


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def chat(*messages: Any, **more: Any) -> bytes:
    return lines({"messages": messages, **more})


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("rows.jsonl", lines(GOOD))
    return buffer.getvalue()


FILES: dict[str, tuple[str, bytes, str]] = {
    # Not a file of rows
    "empty": ("rows.jsonl", b"", "rows.jsonl holds no rows: expected at least one"),
    "only blank lines": ("rows.jsonl", b"\n \n", "rows.jsonl holds no rows"),
    "empty array": ("rows.json", b" [ ] \n", "rows.json holds no rows"),
    "only a header": ("rows.csv", b"prompt,completion\n", "rows.csv holds no rows"),
    "only a byte order mark": ("rows", b"\xef\xbb\xbf", "rows holds no rows"),
    "prose": ("rows", b"Once upon a time\n", 'rows begins with "Once upon a time": expected rows'),
    "zip": ("rows.jsonl", zip_bytes(), "rows.jsonl is not text but a ZIP archive or an Office"),
    "compressed twice": (
        "rows.jsonl.gz",
        gzip.compress(gzip.compress(lines(GOOD))),
        "rows.jsonl.gz is compressed twice: unpack it once",
    ),
    "bzip2": ("rows.jsonl", bz2.compress(lines(GOOD)), "compressed with bzip2: unpack it, or"),
    "UTF-16": ("rows.csv", "text\nTwelve.\n".encode("utf-16"), "encoded in UTF-16: save it as"),
    "UTF-16, no mark": ("rows.csv", "text\n".encode("utf-16-le"), "is not text: byte 1 is NUL"),
    # Invalid JSON, or JSON of another structure
    "Latin-1": (
        "rows.jsonl",
        lines(GOOD) + '{"prompt": "Größe"}\n'.encode("latin-1"),
        "rows.jsonl: 1 of 2 rows cannot be used: 1 row: not UTF-8 (byte 0xf6 at place 15) (line 2)",
    ),
    "Latin-1 array": (
        "rows.json",
        b'[{"text": "x"},\n\n{"text": "\xf6"}]',
        "1 row: not UTF-8 (byte 0xf6), so what follows cannot be read (line 3)",
    ),
    "line cut off": (
        "rows.jsonl",
        lines(GOOD, GOOD)[:-20],
        "1 of 2 rows cannot be used: 1 row: not JSON (Unterminated string, column ",
    ),
    "invalid JSON": (
        "rows.jsonl",
        lines(GOOD) + b"{oops\n\n" + lines(GOOD) + b"null,\n",
        "2 of 4 rows cannot be used: 2 rows: not JSON (Expecting property name enclosed in double "
        "quotes, column 2) (lines 2, 5)",
    ),
    "single quotes": ("rows.jsonl", b"{'text': 'x'}\n", "not JSON (Expecting property name"),
    "raw control character": ("rows.jsonl", b'{"text": "a\x01b"}\n', "Invalid control character"),
    "duplicate key": (
        "rows.jsonl",
        b'{"text": "x", "text": "y"}\n',
        '1 row: duplicate key "text" (line 1)',
    ),
    "duplicate key in an array": (
        "rows.json",
        b'[{"text": "x", "text": "y"}]',
        'duplicate key "text"',
    ),
    "array cut off": (
        "rows.json",
        b'[{"text": "x"},\n{"text": "y',
        "1 row: not JSON (Unterminated string): the file ends within the row (line 2)",
    ),
    "array not closed": ("rows.json", b'[{"text": "x"}\n', "ends before the array's ']'; it seems"),
    "no comma": (
        "rows.json",
        b'[{"text": "x"}\n{"text": "y"}]',
        "expected ',' or ']' after the row, found '{' (line 2)",
    ),
    "comma before the end": ("rows.json", b'[{"text": "x"},\n]', "not JSON (Expecting value)"),
    "broken element": (
        "rows.json",
        b'[{"text": ""},\n {"text":: 1}, {}]',
        "2 of 2 rows cannot be used: 1 row: 'text' is empty, expected text (line 1); "
        "1 row: not JSON (Expecting value), so what follows cannot be read (line 2)",
    ),
    "two arrays": ("rows.json", b'[{"text": "x"}]\n[{"text": "y"}]', "expected nothing after the"),
    "closed twice": ("rows.json", b'[{"text": "x"}]]', "expected nothing after the array's ']'"),
    "nested arrays": ("rows.json", b'[[{"text": "x"}]]', 'the first row has [{"text": "x"}]'),
    "nested too deeply": ("rows.json", b"[" * 100_000, "cannot be read (maximum recursion depth"),
    "nested too deeply in a line": ("rows.jsonl", b'{"text": ' + b"[" * 100_000, "cannot be read"),
    "endless number": ("rows.jsonl", b'{"n": ' + b"1" * 5000 + b"}", "cannot be read (Exceeds"),
    "a number": ("rows.jsonl", b"3\n", "the first row has 3; expected 'messages'"),
    "a number later": ("rows.jsonl", lines(GOOD, 3), "expected an object, found 3 (line 2)"),
    "object at the top": (
        "rows.json",
        b'{"data": [{"text": "x"}]}',
        "the first row has the keys \"data\"; expected 'messages', or 'conversations', or 'prompt' "
        "and 'completion', or 'instruction' and 'output', or 'text'; if \"data\" holds the rows, "
        "make the file that list alone",
    ),
    "object over several lines": (
        "rows.json",
        json.dumps({"data": [GOOD]}, indent=1).encode(),
        'rows.json has an object on several lines, beginning with "{": expected one object a '
        "line, or an array of objects; if the rows are in a list within it, as in "
        "{'data': [...]}, make the file that list alone",
    ),
    "other keys": (
        "rows.jsonl",
        b'{"question": "x"}',
        'where names differ, set columns, as in {"prompt": "question"}',
    ),
    # CSV
    "no header": ("rows.csv", b"How many?,Twelve.\nWhen?,At six.\n", 'keys "How many?", "Twelve'),
    "rows of different length": (
        "rows.csv",
        b"prompt,completion\na,b\nc\nd,e,f\n",
        "2 of 3 rows cannot be used: 2 rows: 1 fields where the header has 2; quote fields that "
        "hold the separator (lines 3, 4)",
    ),
    "unnamed column": ("rows.csv", b"text,\nx,y\n", "column 2 of the header has no name"),
    "duplicate column": ("rows.csv", b"text,text\nx,y\n", 'the header names "text" more than once'),
    "quote not closed": ("rows.csv", b'text\n"Twelve.\n', "not CSV (unexpected end of data)"),
    "text after a quote": (
        "rows.csv",
        b'text\nok\n"x"y\n',
        "not CSV (',' expected after '\"'); double the quotes",
    ),
    "empty cell": ("rows.csv", b"prompt,completion\na,\n", "'completion' is empty, expected text"),
    "CSV in Latin-1": ("rows.csv", b"text\nGr\xf6\xdfe\n", "not UTF-8 (byte 0xf6); save the file"),
    # Values of the wrong type
    "text is a number": ("rows.jsonl", lines({"text": 3}), "'text' is 3, expected text (line 1)"),
    "output is null": (
        "rows.jsonl",
        lines({"instruction": "x", "output": None}),
        "'output' is null, expected text",
    ),
    "completion is missing": (
        "rows.jsonl",
        lines(GOOD, {"prompt": "x"}),
        "'completion' is missing, expected text (line 2)",
    ),
    "lone surrogate": ("rows.jsonl", rb'{"text": "\ud800"}', "'text' has half a character (a"),
    "NUL character": ("rows.jsonl", rb'{"text": "a\u0000b"}', "'text' has a NUL character in it"),
    "one token": (
        "rows.jsonl",
        lines({"text": "<|im_end|>"}),
        "nothing in its 1 tokens is learned",
    ),
    # Chats
    "no messages": ("rows.jsonl", chat(), "'messages' is [], expected a list with at least one"),
    "messages are text": (
        "rows.jsonl",
        lines({"messages": "hi"}),
        "'messages' is \"hi\", expected",
    ),
    "cell is not JSON": ("rows.csv", b"messages\n[oops\n", "'messages' is not JSON: \"[oops\""),
    "message is text": ("rows.jsonl", chat("hi"), 'message 1 is "hi", expected an object'),
    "role": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "role": "robot"}) + chat({**ANSWER, "role": "bot"}),
        '2 rows: message 2 has the role "robot", expected one of system, developer, user, '
        "assistant, tool (lines 1, 2)",
    ),
    "no role": ("rows.jsonl", chat({"content": "hi"}), "message 1 has the role null, expected one"),
    "no answer": ("rows.jsonl", chat(USER), "no message is the assistant's"),
    "no content": ("rows.jsonl", chat(USER, {"role": "assistant"}), "'content' is missing"),
    "blank content": ("rows.jsonl", chat(USER, {**ANSWER, "content": " "}), "'content' is empty"),
    "image": (
        "rows.jsonl",
        chat({"role": "user", "content": [{"type": "image_url"}]}, ANSWER),
        "'content' has the part {\"type\": \"image_url\"}, expected parts such as {'type': 'text'",
    ),
    "other keys of a message": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "mood": "good"}),
        'message 2 has the keys "mood", which are not supported',
    ),
    "weight": ("rows.jsonl", chat(USER, {**ANSWER, "weight": 0.5}), "has the weight 0.5, expected"),
    "weight of LLaMA-Factory": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "loss_weight": 0.3}),
        "message 2 has the loss_weight 0.3, expected 0 or 1: a message is learned as a whole or "
        "not at all",
    ),
    "weight in ShareGPT": (
        "rows.jsonl",
        lines({"conversations": [{"from": "gpt", "value": "x", "loss_weight": 0.3}]}),
        "message 1 has the loss_weight 0.3, expected 0 or 1",
    ),
    "train is a word": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "train": "no"}),
        'message 2 has the train "no", expected true or false',
    ),
    "contradictory flags": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "weight": 1, "train": False}),
        'message 2 has the flags {"weight": true, "train": false}, which contradict each other',
    ),
    "train of a question": (
        "rows.jsonl",
        lines({"conversations": [{"from": "human", "value": "x", "train": True}]}),
        "message 1 has 'train', which only the assistant's may",
    ),
    "spans of a message": (
        "rows.jsonl",
        lines({"conversations": [{"from": "gpt", "value": "x", "train_detail": [{}]}]}),
        "message 1 has 'train_detail', but a message is learned as a whole or not at all",
    ),
    "call of Hermes is not JSON": (
        "rows.jsonl",
        lines(
            {"conversations": [{"from": "function_call", "value": "<tool_call>{'a'}</tool_call>"}]}
        ),
        "a <tool_call> block is not JSON: \"{'a'}\"",
    ),
    "call of Hermes has no end": (
        "rows.jsonl",
        lines({"conversations": [{"from": "function_call", "value": '<tool_call>{"name": "f"}'}]}),
        "a <tool_call> has no end",
    ),
    "weight of a question": (
        "rows.jsonl",
        chat({**USER, "weight": 1}, ANSWER),
        "'weight', which o",
    ),
    "all of weight 0": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "weight": 0}),
        "has weight 1, so there",
    ),
    "speaker": (
        "rows.jsonl",
        lines({"conversations": [{"from": "robot", "value": "x"}]}),
        'message 1 is from "robot", expected one of system, human, user, gpt',
    ),
    "speaker is a list": (
        "rows.jsonl",
        lines({"conversations": [{"from": [], "value": "x"}]}),
        "message 1 is from [], expected one of system, human, user, gpt",
    ),
    "speaker is an object": (
        "rows.jsonl",
        lines({"conversations": [{"from": {}, "value": "x"}]}),
        "message 1 is from {}, expected one of system, human, user, gpt",
    ),
    "no speaker": (
        "rows.jsonl",
        lines({"conversations": [{"value": "x"}]}),
        "message 1 is from null, expected one of system, human",
    ),
    # Rows that would be learned wrongly
    "KTO": (
        "rows.jsonl",
        lines({**GOOD, "label": True}, {**GOOD, "label": False}),
        "2 of 2 rows cannot be used: 2 rows: it has 'label', which marks good and bad answers "
        "(DPO, KTO): without the mark bad answers would be learned as good ones; train with task "
        "'preference', or keep the good answers alone, without this key (lines 1, 2)",
    ),
    "KTO in CSV": ("rows.csv", b"prompt,completion,label\na,b,True\n", "it has 'label', which"),
    "KTO of LLaMA-Factory": ("rows.jsonl", chat(USER, ANSWER, kto_tag=False), "it has 'kto_tag'"),
    "DPO after an earlier answer": (
        "rows.jsonl",
        chat(USER, ANSWER, USER, chosen=ANSWER, rejected=ANSWER),
        "it has 'chosen', which marks good and bad answers",
    ),
    "DPO alone": (
        "rows.jsonl",
        lines({"prompt": "a", "chosen": "b", "rejected": "c"}),
        "rows.jsonl: it has 'chosen', which marks good and bad answers",
    ),
    "DPO of OpenAI": (
        "rows.jsonl",
        lines({"input": {"messages": [USER]}, "preferred_output": [ANSWER]}),
        "it has 'preferred_output', which marks good and bad answers",
    ),
    "images": (
        "rows.jsonl",
        chat({**USER, "content": "<image>What is it?"}, ANSWER, images=["a.png"]),
        "it has 'images': images, audio and video cannot be learned yet; leave such rows out, or "
        "remove the key where the text makes sense alone",
    ),
    "image of LLaVA": (
        "rows.jsonl",
        lines({"image": "a.png", "conversations": [{"from": "gpt", "value": "x"}]}),
        "it has 'image': images, audio and video",
    ),
    "video of a message": (
        "rows.jsonl",
        lines({"conversations": [{"from": "gpt", "value": "x", "videos": ["a.mp4"]}]}),
        "message 1 has 'videos': images, audio and video",
    ),
    "history is text": (
        "rows.jsonl",
        lines({"instruction": "a", "output": "b", "history": {"a": "b"}}),
        '\'history\' is {"a": "b"}, expected a list of [question, answer] pairs (line 1)',
    ),
    "incomplete turn of history": (
        "rows.jsonl",
        lines({"instruction": "a", "output": "b", "history": [["c", "d"], ["e"]]}),
        "turn 2 of 'history' is [\"e\"], expected a pair [question, answer] (line 1)",
    ),
    "an answer of history is empty": (
        "rows.jsonl",
        lines({"instruction": "a", "output": "b", "history": [["c", ""]]}),
        "'history[1][1]' is empty, expected text (line 1)",
    ),
    # Tools
    "tools without a template": (
        "rows.jsonl",
        chat(USER, ANSWER, tools=[TOOL]),
        "it has 'tools', which the model's chat template does not render; use a model whose",
    ),
    "calls without a template": (
        "rows.jsonl",
        chat(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}),
        "it has 'tool_calls', which the model's chat template does not render",
    ),
    "tools are an object": ("rows.jsonl", chat(USER, ANSWER, tools={"a": 1}), "expected a list of"),
    "tool without a name": ("rows.jsonl", chat(USER, ANSWER, tools=[{}]), "a tool is {}, expected"),
    "call without a name": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "tool_calls": [{"function": {}}]}),
        'a tool call is {"function": {}}, expected a function with a name',
    ),
    "arguments are not JSON": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]}),
        "'arguments' of a tool call is not JSON: \"{a\"",
    ),
    "lone surrogate in the id of a call": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "tool_calls": [{**CALL, "id": "\ud800"}]}),
        "'id' has half a character (a lone surrogate) in it (line 1)",
    ),
    "lone surrogate in the name of a call": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "tool_calls": [{"function": {"name": "f\udfff"}}]}),
        "'name' has half a character (a lone surrogate) in it (line 1)",
    ),
    "function within a function": (
        "rows.jsonl",
        chat(USER, {**ANSWER, "tool_calls": [{"function": {"function": {"name": "f"}}}]}),
        'a tool call is {"function": {"function": {"name": "f"}}}, expected a function with a name',
    ),
    "parallel calls": (
        "rows.jsonl",
        chat(USER, ANSWER, parallel_tool_calls=2),
        "'parallel_tool_calls' is 2, expected true or false",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_broken_file_is_rejected_with_explanation(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, case: str
) -> None:
    name, content, expected = FILES[case]
    assert expected in refuse(tmp_path / name, content, tokenizer)


def test_faults_are_grouped_by_kind(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    empty, long = {**GOOD, "completion": ""}, {**GOOD, "completion": "loaves " * 300}
    content = lines(GOOD, *[empty] * 30, long, {**GOOD, "prompt": 3}, long)
    message = refuse(tmp_path / "rows.jsonl", content, tokenizer, overlong="refuse")
    counted = ", ".join(map(str, range(2, 22)))
    assert message.startswith(
        "rows.jsonl: 33 of 34 rows cannot be used: "
        f"30 rows: 'completion' is empty, expected text (lines {counted} and 10 more); 2 rows: "
    )
    assert "tokens, more than max_length 128; shorten it, or set overlong to 'truncate'" in message
    assert message.endswith("(lines 32, 34); 1 row: 'prompt' is 3, expected text (line 33)")


def test_file_with_all_rows_dropped_is_rejected(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    content = lines({**GOOD, "prompt": "loaves " * 300})
    message = refuse(tmp_path / "rows.jsonl", content, tokenizer)
    assert "rows.jsonl: no row is left: all have more than max_length 128 tokens" in message
    assert message.endswith("(line 1); raise max_length")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"prompt": "question", "completion": "answer"},
            'columns names "answer", which the first row lacks; the columns there are '
            '"question", "reply"',
        ),
        ({"pormpt": "question"}, 'columns has the keys "pormpt"; the keys are "completion",'),
    ],
)
def test_unknown_columns_are_named(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    columns: dict[str, str],
    expected: str,
) -> None:
    content = lines({"question": "How many?", "reply": "Twelve."})
    assert expected in refuse(tmp_path / "rows.jsonl", content, tokenizer, columns=columns)


@pytest.mark.parametrize("mark", ["", "[", "text\n"])
def test_row_over_size_limit_is_rejected(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    mark: str,
) -> None:
    """A file with one endless line or an unclosed quote must not exhaust the memory."""
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 200_000)
    endless = '"' + "x" * 1_000_000 if mark else '{"text": "' + "x" * 1_000_000
    message = refuse(tmp_path / "rows", f"{mark}{endless}".encode(), tokenizer)
    assert any(word in message for word in ("longer than 200,000", "field larger than field limit"))


def test_broken_row_of_large_array_is_reported_with_line(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 200_000)
    rows = [json.dumps({"text": "loaves " * 20})] * 5_000
    rows[2_000] = rows[2_000].replace('"text":', '"text"')
    content = f"[{','.join(rows)}]".replace("},", "},\n").encode()
    message = refuse(tmp_path / "rows.json", content, tokenizer)
    assert "1 of 2001 rows" in message
    assert (
        "not JSON (Expecting ':' delimiter), so what follows cannot be read (line 2001)" in message
    )


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^no file at .*gone.jsonl': expected rows as JSONL"):
        list(RowFile(tmp_path / "gone.jsonl").read())
    (tmp_path / "rows").mkdir()
    with pytest.raises(DataError, match="^'rows' is a folder: expected a file of rows$"):
        list(RowFile(tmp_path / "rows").read())


def test_many_keys_are_processed_quickly_and_listed_partly(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    names = [f"name{number}" for number in range(100_000)]
    pairs = ", ".join(f'"{name}": 1' for name in [*names, names[-1]])
    started = time.process_time()
    twice = refuse(tmp_path / "rows.jsonl", f"{{{pairs}}}\n".encode(), tokenizer)
    cells = ",".join([*names, *names])
    header = refuse(tmp_path / "rows.csv", f"{cells}\n1\n".encode(), tokenizer)
    assert 'duplicate key "name99999"' in twice
    assert "and 99980 more" in header
    assert len(twice + header) < 4_000
    assert time.process_time() - started < 20.0  # a linear search per name takes minutes
