"""Small rows that would take much memory or time are rejected with their line number."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from tests.tokenizer_kinds import CHATML, make_tokenizer
from training.data import row_limits
from training.data.faults import DataError, RowFault
from training.data.readers import RowFile
from training.data.row_stream import RowStream
from training.data.text.encoding import RowEncoder, TokenSample
from training.data.text.formats import Row, choose_parser
from training.data.text.reader import TextReader
from training.spec import TrainingSpec

ROOT = Path(__file__).parents[3]
MAX_CPU_S = 10.0  # previously, these rows took minutes
USER = {"role": "user", "content": "How many loaves?"}
ANSWER = {"role": "assistant", "content": "Twelve."}
GOOD = {"messages": [USER, ANSWER]}
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
TOOL_TEMPLATE = (
    "{{ (tools or []) | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content or '' }}{{ (m.tool_calls or []) | tojson }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def call(name: str = "count", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": "call-1", "function": {"name": name, "arguments": arguments}}


def ask_to_call(*calls: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "tool_calls": list(calls)}]}


def nest(num_levels: int) -> str:
    return '{"a":' * num_levels + "1" + "}" * num_levels


def describe_tool(number: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"count_{number}"}}


def open_rows(
    file: Path, tokenizer: PreTrainedTokenizerBase, **settings: Any
) -> RowStream[Any, Any]:
    spec = TrainingSpec.model_validate({"base_model": "m", "train_file": str(file), **settings})
    source = RowFile(file, ("prompt", "text"))
    return RowStream(source, TextReader(source, spec, tokenizer), 1 << 20, spec.overlong)


def write_rows(file: Path, *records: Any) -> Path:
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


TOO_LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "messages": (
        {"messages": [USER, ANSWER] * 300},
        "it has 600 messages, expected at most 512; split it into several rows (line 2)",
    ),
    "turns of ShareGPT": (
        {
            "conversations": [
                {"from": "human", "value": "Hm?"},
                {"from": "gpt", "value": "Yes."},
            ]
            * 257
        },
        "it has 514 messages, expected at most 512",
    ),
    "messages of prompt and completion": (
        {"prompt": [USER, ANSWER] * 256, "completion": [ANSWER]},
        "it has 513 messages, expected at most 512",
    ),
    "tools": (
        {**GOOD, "tools": [describe_tool(number) for number in range(20_000)]},
        "it has 20,000 tools, expected at most 128; leave out those that it does not need (line 2)",
    ),
    "one tool many times": (
        {**GOOD, "tools": [describe_tool(0)] * 20_000},
        "it has 20,000 tools, expected at most 128",
    ),
    "names of calls": (
        ask_to_call(*(call(f"count_{number}") for number in range(20_000))),
        "it has 20,000 different names of tools, expected at most 128",
    ),
    "nested arguments": (
        ask_to_call(call(arguments=nest(200))),
        "levels of lists and objects, expected at most 64; flatten them (line 2)",
    ),
    "deeply nested arguments": (
        ask_to_call(call(arguments=nest(480))),
        "(line 2)",
    ),
    "text of messages": (
        {"messages": [{**USER, "content": "loaves " * 150_000}, ANSWER]},
        " bytes, expected at most 750,000; split it into several rows (line 2)",
    ),
    "many empty objects as arguments": (
        ask_to_call(call(arguments={"a": [{}] * 500_000})),
        " bytes, expected at most 750,000; split it into several rows (line 2)",
    ),
    "text with control tokens": (
        {"messages": [{**USER, "content": "loaves<|im_end|> " * 30_000}, ANSWER]},
        "with control tokens as text it has ",
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_too_large_row_is_rejected_with_line(tmp_path: Path, case: str) -> None:
    record, expected = TOO_LARGE[case]
    first = {"conversations": [{"from": "human", "value": "Hm?"}, {"from": "gpt", "value": "Yes."}]}
    formats = {"conversations": first, "prompt": {"prompt": [USER], "completion": [ANSWER]}}
    good = next((formats[key] for key in formats if key in record), GOOD)
    file = write_rows(tmp_path / "rows.jsonl", good, record, good)
    started = time.process_time()
    with pytest.raises(DataError) as caught:
        list(open_rows(file, make_tokenizer("byte-level", TOOL_TEMPLATE)).encode())
    assert str(caught.value).startswith("rows.jsonl: 1 of 3 rows cannot be used: 1 row: ")
    assert expected in str(caught.value)
    assert time.process_time() - started < MAX_CPU_S


def test_too_large_text_is_rejected(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", {"text": "fox"}, {"text": "é" * 400_000})
    with pytest.raises(
        DataError,
        match="^rows.jsonl: 1 of 2 rows cannot be used: 1 row: it has 800,000 bytes, "
        "expected at most 750,000.*line 2",
    ):
        list(open_rows(file, make_tokenizer("byte-level", None)).encode())


@pytest.mark.parametrize("template", [CHATML, UNMARKED])
def test_row_with_maximum_number_of_messages_is_learned(tmp_path: Path, template: str) -> None:
    silent = {**ANSWER, "content": "Silence.", "weight": 0}
    file = write_rows(tmp_path / "rows.jsonl", {"messages": [USER, silent, *[USER, ANSWER] * 255]})
    tokenizer = make_tokenizer("byte-level", template)
    (row,) = open_rows(file, tokenizer).encode()
    learned = str(tokenizer.decode(row.input_ids[row.learned].tolist()))
    assert (learned.count("Twelve."), learned.count("Silence.")) == (255, 0)


def test_memory_of_row_does_not_grow_with_number_of_answers(
    tiny_model: Path, tmp_path: Path
) -> None:
    """All prefixes of this row are 150 MB in total; previously, one message contained them all."""
    talk = {"messages": [{**USER, "content": "loaves " * 160}, ANSWER] * 256}
    write_rows(tmp_path / "long.jsonl", {"messages": talk["messages"][:2]}, talk)
    write_rows(tmp_path / "short.jsonl", GOOD)
    peaks_mb = [
        int(
            subprocess.run(
                [sys.executable, "-c", MEASURE_PEAK, tiny_model, tmp_path / name],
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for name in ("short.jsonl", "long.jsonl")
    ]
    assert peaks_mb[1] - peaks_mb[0] < 200


MEASURE_PEAK = """
import re, sys
from pathlib import Path
from training.base_model import load_tokenizer
from training.data.readers import RowFile
from training.data.row_stream import RowStream
from training.data.text.reader import TextReader
from training.spec import TrainingSpec

model, file = sys.argv[1:]
tokenizer = load_tokenizer(model)
for marker in ("{%- generation -%}", "{%- endgeneration -%}"):
    tokenizer.chat_template = tokenizer.chat_template.replace(marker, "")
spec = TrainingSpec.model_validate({"base_model": "m", "train_file": file})
source = RowFile(Path(file))
for _ in RowStream(source, TextReader(source, spec, tokenizer), 1 << 20).encode():
    pass
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
"""


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """A list to which every encoded batch of rows is added."""
    found: list[list[Row]] = []
    encode = RowEncoder.encode

    def record_batches(
        encoder: RowEncoder, rows: Iterable[Sequence[Row]]
    ) -> Iterator[tuple[Row, TokenSample | RowFault]]:
        def iterate_recorded() -> Iterator[Sequence[Row]]:
            for batch in rows:
                found.append(list(batch))
                yield batch

        return encode(encoder, iterate_recorded())

    monkeypatch.setattr(RowEncoder, "encode", record_batches)
    return found


LONG = "loaf " * 20_000
LARGE_ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "content": lambda: {"messages": [{**USER, "content": LONG}, ANSWER]},
    "tools": lambda: {
        **GOOD,
        "tools": [{"type": "function", "function": {"name": "count", "description": LONG}}],
    },
    "arguments": lambda: ask_to_call(call(arguments={"what": LONG})),
    "name": lambda: {"messages": [USER, ANSWER, {"role": "tool", "content": "", "name": LONG}]},
}


@pytest.mark.parametrize("part", LARGE_ROWS)
def test_batch_size_counts_bytes_of_all_parts_of_row(
    tmp_path: Path, batches: list[list[Row]], part: str
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", *[GOOD] * 5, *[LARGE_ROWS[part]()] * 8, *[GOOD] * 5)
    tokenizer = make_tokenizer("byte-level", TOOL_TEMPLATE)
    assert len(list(open_rows(file, tokenizer).encode())) == 18
    sizes = [sum(len(json.dumps([row.messages, row.tools])) for row in batch) for batch in batches]
    assert sum(map(len, batches)) == 18
    assert max(sizes) <= 310_000


def test_too_long_line_does_not_affect_other_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 1_000)
    rows = [{"text": "fox"}, {"text": "x" * 5_000}, {"text": "fox"}, {"text": 3}]
    file = write_rows(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(DataError) as caught:
        list(open_rows(file, make_tokenizer("byte-level", None)).encode())
    assert "2 of 4 rows" in str(caught.value)
    assert "longer than 1,000 bytes, the limit for one row (line 2)" in str(caught.value)
    assert "(line 4)" in str(caught.value)


@pytest.mark.parametrize("cell", ['"\n",', "a,", "a"])
def test_row_limit_applies_to_all_cells_of_table_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 10_000)
    file = tmp_path / "rows.csv"
    file.write_text(f"text\nfox\n{cell * 40_000}\n")
    with pytest.raises(
        DataError,
        match=r"^rows.csv: 1 of 2 rows cannot be used: 1 row: longer than 10,000 bytes, the "
        r"limit for one row \(line 3",
    ):
        list(open_rows(file, make_tokenizer("byte-level", None)).encode())


def test_parsed_row_reports_its_size() -> None:
    row = choose_parser(GOOD, "chat", {}).parse(1, GOOD)
    assert abs(row.measure.size_bytes - len(json.dumps(GOOD))) < 60
    tools = {"tools": [describe_tool(1)], **ask_to_call(call("count_1"), call("other"))}
    assert choose_parser(tools, "chat", {}).parse(1, tools).tool_names == {"count_1": 2, "other": 1}
