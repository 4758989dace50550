"""One record to a `Row`: tell the format, parse it, and say what is wrong with it.

Whatever the format, a row becomes messages in the shape that chat templates take, or plain text.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from training.data.faults import DataError, RowFault, show_names, show_value
from training.data.messages import (
    Message,
    Turn,
    get_list,
    get_text,
    name_tool,
    parse_message,
    parse_sharegpt_message,
    parse_tools,
)
from training.data.row_limits import (
    MAX_DEPTH,
    MAX_MESSAGES,
    MAX_TEXT_BYTES,
    MAX_TOOLS,
    Measure,
    check_count,
    check_size,
    measure_value,
)
from training.spec import DataFormat

_NEEDED_KEYS: dict[DataFormat, tuple[str, ...]] = {
    "chat": ("messages",),
    "sharegpt": ("conversations",),
    "prompt_completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
    "text": ("text",),
}
KNOWN_KEYS = (
    *(key for keys in _NEEDED_KEYS.values() for key in keys),
    "input",
    "system",
    "tools",
    "parallel_tool_calls",
)


@dataclass(frozen=True)
class Row:
    """One row as written: its line and either messages or plain text.

    `learned[i]` says whether message `i` is learned: the assistant's are, unless of weight 0.
    """

    line: int
    messages: tuple[Message, ...] = ()
    learned: tuple[bool, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None

    @cached_property
    def measure(self) -> Measure:
        """How large everything is that it holds, and how deep it is nested."""
        return measure_value((self.messages, self.tools) if self.text is None else self.text)

    @cached_property
    def tool_names(self) -> Counter[str]:
        """The names of its tools and of its calls of tools, with how often each is there."""
        calls = (call for message in self.messages for call in message.get("tool_calls") or ())
        return Counter(map(name_tool, (*self.tools, *calls)))


@dataclass(frozen=True)
class RowParser:
    """Turns records of one format into rows; `columns` are our keys to theirs."""

    format: DataFormat
    columns: Mapping[str, str]

    def parse(self, line: int, record: Any) -> Row:
        """Parse one record; raises `RowFault` that says what is wrong with it."""
        if isinstance(record, RowFault):
            raise record
        if not isinstance(record, Mapping):
            raise RowFault("expected an object, found {}", show_value(record))
        try:
            row = _PARSERS[self.format](line, _rename(record, self.columns))
        except RecursionError as exc:
            raise RowFault("nested too deeply, expected at most {} levels", MAX_DEPTH) from exc
        _check_limits(row)
        return row


def choose_parser(
    record: Any,
    format: DataFormat,  # noqa: A002 - the spec's own word
    columns: Mapping[str, str],
) -> RowParser:
    """Choose by the first row how rows are parsed; 'auto' recognises the format.

    Raises `DataError` if the row has none of our formats, or lacks a column that is mapped.
    """
    keys = list(record) if isinstance(record, Mapping) else []
    if unknown := sorted(set(columns) - set(KNOWN_KEYS)):
        known = show_names(sorted(KNOWN_KEYS))
        raise DataError(f"columns has the keys {show_names(unknown)}; the keys are {known}")
    if missing := sorted(theirs for theirs in columns.values() if theirs not in keys):
        raise DataError(
            f"columns names {show_names(missing)}, which the first row lacks; "
            f"the columns there are {show_names(keys)}"
        )
    if format != "auto":
        return RowParser(format, columns)
    found = _recognise(columns) or _recognise([*keys, *columns])
    if found is None:
        raise DataError(_describe_unknown(record, keys))
    return RowParser(found, columns)


def _recognise(keys: Iterable[str]) -> DataFormat | None:
    there = set(keys)
    return next((name for name, needed in _NEEDED_KEYS.items() if there >= set(needed)), None)


def _describe_unknown(record: Any, keys: list[str]) -> str:
    found = f"the keys {show_names(sorted(keys))}" if keys else show_value(record)
    message = (
        f"the first row has {found}; expected 'messages', or 'conversations', or 'prompt' and "
        "'completion', or 'instruction' and 'output', or 'text'"
    )
    if not keys:
        return message
    lists = [key for key in keys if isinstance(record[key], list) and record[key]]
    if len(keys) <= 2 and lists and isinstance(record[lists[0]][0], Mapping):
        return f"{message}; if {show_value(lists[0])} holds the rows, make the file that list alone"
    return f'{message}; where names differ, set columns, as in {{"prompt": {show_value(keys[0])}}}'


def _rename(record: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    if not columns:
        return record
    return {**record, **{ours: record.get(theirs) for ours, theirs in columns.items()}}


def _parse_text(line: int, record: Mapping[str, Any]) -> Row:
    return Row(line, text=get_text(record, "text"))


def _parse_chat(line: int, record: Mapping[str, Any]) -> Row:
    flag = record.get("parallel_tool_calls")  # says nothing that a template shows
    if not isinstance(flag, bool | None | str):
        raise RowFault("'parallel_tool_calls' is {}, expected true or false", show_value(flag))
    messages = get_list(record, "messages", "message")
    turns = [parse_message(number, message) for number, message in enumerate(messages, 1)]
    return _make_row(line, turns, parse_tools(record))


def _parse_sharegpt(line: int, record: Mapping[str, Any]) -> Row:
    conversations = get_list(record, "conversations", "message")
    turns = [parse_sharegpt_message(place, item) for place, item in enumerate(conversations, 1)]
    return _make_row(line, [*_instruct(record), *turns], parse_tools(record))


def _parse_alpaca(line: int, record: Mapping[str, Any]) -> Row:
    question = get_text(record, "instruction")
    if record.get("input"):
        question += "\n\n" + get_text(record, "input")
    return _make_row(line, _ask(record, question, get_text(record, "output")), parse_tools(record))


def _parse_completion(line: int, record: Mapping[str, Any]) -> Row:
    if not isinstance(record.get("prompt"), list):
        turns = _ask(record, get_text(record, "prompt"), get_text(record, "completion"))
        return _make_row(line, turns, parse_tools(record))
    prompt = get_list(record, "prompt", "message")
    completion = get_list(record, "completion", "message")
    turns = [parse_message(place, item) for place, item in enumerate([*prompt, *completion], 1)]
    asked = [Turn(turn.message) for turn in turns[: len(prompt)]]
    learned = turns[len(prompt) :]
    return _make_row(line, [*_instruct(record), *asked, *learned], parse_tools(record))


def _instruct(record: Mapping[str, Any]) -> list[Turn]:
    """The system message that a row has beside its turns, if any."""
    if not record.get("system"):
        return []
    return [Turn({"role": "system", "content": get_text(record, "system")})]


def _ask(record: Mapping[str, Any], question: str, answer: str) -> list[Turn]:
    return [
        *_instruct(record),
        Turn({"role": "user", "content": question}),
        Turn({"role": "assistant", "content": answer}, is_learned=True),
    ]


def _check_limits(row: Row) -> None:
    """Raise `RowFault` for a row that would take too much memory or time."""
    split = "split it into several rows"
    check_count(len(row.messages), MAX_MESSAGES, "messages", split)
    check_count(len(row.tool_names), MAX_TOOLS, "different names of tools", split)
    check_count(row.measure.depth, MAX_DEPTH, "levels of lists and objects", "flatten them")
    check_size("it has", row.measure.size_bytes, MAX_TEXT_BYTES)


def _make_row(line: int, turns: list[Turn], tools: tuple[Mapping[str, Any], ...] = ()) -> Row:
    if not any(turn.message["role"] == "assistant" for turn in turns):
        raise RowFault("no message is the assistant's, so there is nothing to learn")
    if not any(turn.is_learned for turn in turns):
        raise RowFault("no message of the assistant has weight 1, so there is nothing to learn")
    if tools:
        _check_encodable(tools)
    messages = tuple(turn.message for turn in turns)
    return Row(line, messages, tuple(turn.is_learned for turn in turns), tools)


def _check_encodable(tools: tuple[Mapping[str, Any], ...]) -> None:
    try:
        json.dumps(tools, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as exc:
        raise RowFault("'tools' has half a character (a lone surrogate) in it") from exc


_PARSERS: dict[DataFormat, Callable[[int, Mapping[str, Any]], Row]] = {
    "chat": _parse_chat,
    "sharegpt": _parse_sharegpt,
    "prompt_completion": _parse_completion,
    "alpaca": _parse_alpaca,
    "text": _parse_text,
}
