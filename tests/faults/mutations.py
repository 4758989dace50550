"""Damaged training files: random bytes, and rows with each part replaced by another value."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "count_loaves", "arguments": '{"day": "Monday"}'},
}
TOOL = {
    "type": "function",
    "function": {"name": "count_loaves", "parameters": {"type": "object", "properties": {}}},
}
QUESTION, ANSWER = "How many loaves?", "Twelve."
TOOL_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}], "name": "fox"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": 0},
        {"role": "tool", "content": "12", "tool_call_id": "call-1", "name": "count_loaves"},
        {"role": "assistant", "content": ANSWER, "weight": 1},
    ],
    "tools": [TOOL],
    "parallel_tool_calls": True,
}
RECORDS: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": ANSWER, "weight": 1},
        ]
    },
    "prompt": {"prompt": QUESTION, "completion": ANSWER},
    "alpaca": {"instruction": QUESTION, "input": "", "output": ANSWER},
    "sharegpt": {
        "conversations": [
            {"from": "human", "value": QUESTION},
            {"from": "gpt", "value": ANSWER},
        ]
    },
    "text": {"text": f"{QUESTION} {ANSWER}"},
}
TOOL_RECORDS: dict[str, dict[str, Any]] = {
    **RECORDS,
    "chat": TOOL_CHAT,
    "prompt": {
        "system": "Be short.",
        "prompt": TOOL_CHAT["messages"][:2],
        "completion": TOOL_CHAT["messages"][2:],
    },
    "sharegpt": {
        "conversations": [
            {"from": "human", "value": QUESTION},
            {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {"a": "b"}})},
            {"from": "observation", "value": "12"},
            {"from": "gpt", "value": ANSWER, "weight": 1},
        ],
        "system": "Be short.",
        "tools": json.dumps([TOOL]),
    },
}
# Inputs that have broken parsers, templates and tokenizers in other projects.
TOKENS = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"\xed\xa0\x80",
    b"\\u0000",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5_000,
    b"[" * 2_000,
    b'{"a":' * 500,
    b'"' * 3,
    b"\r",
    b"\r\n",
    b"\xe2\x80\xa8",
    b"<|im_end|>",
    b"{{ 1 / 0 }}",
    b"{% for x in range(10) %}",
    b"=HYPERLINK(1)",
    b"\t",
    b",,,,",
    b"\x1b[31m",
    "\U0001d518\u200d\u202e".encode(),
    b"A" * 20_000,
]
_DEEP: Any = []
for _ in range(300):
    _DEEP = [_DEEP]
# One value of every JSON type, and values that contain another type as text.
VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    10**30,
    float("nan"),
    "",
    "x",
    "\ud800",
    "[]",
    '{"name": ["f"]}',
    [],
    ["x"],
    [[]],
    {},
    {"function": {"name": "f"}},
    {"type": "text", "text": []},
    _DEEP,
]
Path = tuple[str | int, ...]


def build_seeds() -> list[tuple[str, bytes]]:
    """Return the name and content of an undamaged file of each format."""
    seeds = []
    for name, record in RECORDS.items():
        line = json.dumps(record).encode() + b"\n"
        seeds.append((f"{name}.jsonl", line * 6))
        seeds.append((f"{name}.json", json.dumps([record] * 6, indent=1).encode()))
    row = f'"{QUESTION}",{ANSWER}\n'
    seeds.append(("rows.csv", f"prompt,completion\n{row * 6}".encode()))
    seeds.append(("rows.tsv", f"prompt\tcompletion\n{QUESTION}\t{ANSWER}\n".encode() * 3))
    return seeds


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Damage content in one to four places."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.randint(1, 30))
        before, cut, after = content[:start], content[start:end], content[end:]
        middle = rng.choice(
            [
                rng.choice(TOKENS) + cut,  # inserted
                rng.choice(TOKENS),  # replaced
                b"",  # removed
                cut * 3,  # repeated
                rng.randbytes(len(cut)),  # overwritten
            ]
        )
        content = before + middle + (b"" if rng.random() < 0.1 else after)
    return content


def list_mutated_rows(name: str, rng: random.Random) -> list[bytes]:
    """Return one JSON line per part of a record and change of that part, in random order."""
    record = TOOL_RECORDS[name]
    found = [
        json.dumps(changed).encode()
        for path, value in _walk(record)
        for changed in _change(record, path, value)
    ]
    rng.shuffle(found)
    return found


def _walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and value of every part of a record, except the record itself."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index))


def _change(record: dict[str, Any], path: Path, value: Any) -> Iterator[Any]:
    """Yield copies of a record with one part replaced, removed, or with a lone surrogate.

    The lone surrogate is in the part or in its key.
    """
    others = list(VALUES)
    if isinstance(value, str):
        others += [f"{value}\udfff", f"{value}\0<|im_end|>"]
        others.append(value.replace('"name": "', '"name": "\\ud800'))
    for other in others:
        changed, parent = _copy(record, path)
        parent[path[-1]] = other
        yield changed
    if isinstance(path[-1], str):
        changed, parent = _copy(record, path)
        del parent[path[-1]]
        yield changed
        changed, parent = _copy(record, path)
        parent[f"{path[-1]}\ud800"] = parent.pop(path[-1])
        yield changed


def _copy(record: dict[str, Any], path: Path) -> tuple[Any, Any]:
    """Return a copy of a record, and the container in the copy of the part at `path`."""
    changed = copy.deepcopy(record)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    return changed, parent


def build_large_file(rng: random.Random) -> bytes:
    """Build a file large enough for a task: rows at the limits, rows above them, mutated rows."""
    question = {"role": "user", "content": QUESTION}
    answer = {"role": "assistant", "content": ANSWER}
    unlearned = {**answer, "weight": 0}
    long = "1 " * 340_000
    rows: list[Any] = [
        TOOL_CHAT,
        {"messages": [{**question, "content": long}, answer]},
        {"messages": [{**question, "content": f"{long}{long}"}, answer]},
        {"messages": [{**question, "content": "<|im_end|>1 " * 30_000}, answer]},
        {"messages": [question, unlearned, *[question, answer] * 255]},
        {"messages": [question, unlearned, *[question, answer] * 1_000]},
        {"messages": [question, answer], "tools": [TOOL] * 10_000},
        {"messages": [question, {"role": "assistant", "tool_calls": [CALL] * 5_000}]},
        {"messages": [question, answer], "tools": [{**TOOL, "more": [{}] * 300_000}]},
        {"messages": [question, answer], "notes": [{}] * 1_000_000},
        {"messages": [{**question, "content": long * 7}, answer]},
    ]
    lines = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    return b"\n".join([*lines, *list_mutated_rows("chat", rng)])
