"""Conversion of a record to a `Row`: recognise the format, parse the record, report its faults.

A row of any format becomes messages in the form that chat templates take, or plain text.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from training.data.columns import check_columns
from training.data.faults import DataError, RowFault, show_names, show_value
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
from training.data.text.messages import (
    MEDIA_KEYS,
    NO_MEDIA,
    Message,
    Turn,
    get_list,
    get_text,
    is_given,
    name_tool,
    parse_json,
    parse_message,
    parse_sharegpt_message,
    parse_tools,
)
from training.settings.source_settings import DataFormat

_NEEDED_KEYS: dict[DataFormat, tuple[str, ...]] = {
    "chat": ("messages",),
    "sharegpt": ("conversations",),
    "prompt_completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
    "text": ("text",),
}
_OPTIONAL_KEYS: dict[DataFormat, tuple[str, ...]] = {
    "chat": ("system", "tools", "parallel_tool_calls"),
    "sharegpt": ("system", "tools"),
    "prompt_completion": ("system", "tools"),
    "alpaca": ("input", "history", "system", "tools"),
    "text": (),
}
KNOWN_KEYS = tuple(
    dict.fromkeys(
        key for keys in (*_NEEDED_KEYS.values(), *_OPTIONAL_KEYS.values()) for key in keys
    )
)
_OTHER_MARKS = frozenset(
    {
        "kto_tag",  # LLaMA-Factory
        *("rejected_response", "rejected_messages"),  # ms-swift
    }
)
"""Keys of preferences that task 'preference' does not know."""
_PREFERENCE_KEYS = frozenset(
    {
        *("chosen", "rejected"),  # TRL
        *("preferred_output", "non_preferred_output"),  # OpenAI
        *_OTHER_MARKS,
    }
)
_VERDICTS = (True, False, 0, 1, "0", "1", "true", "false")


@dataclass(frozen=True)
class Row:
    """One parsed row: its line, and either messages or plain text.

    `learned[i]` is true if message `i` is learned: the assistant's messages are, unless their
    weight is 0. `ignored` names the keys of the row that are not used. `number` is the number of
    the row in its source, because several rows may be on one line.
    """

    line: int
    messages: tuple[Message, ...] = ()
    learned: tuple[bool, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None
    ignored: tuple[str, ...] = ()
    number: int = 0

    @cached_property
    def measure(self) -> Measure:
        """The total size and nesting depth of its content."""
        return measure_value((self.messages, self.tools) if self.text is None else self.text)

    @property
    def size_bytes(self) -> int:
        """The total size of its content."""
        return self.measure.size_bytes

    @cached_property
    def tool_names(self) -> Counter[str]:
        """The names of its tools and tool calls, with the number of times that each occurs."""
        calls = (call for message in self.messages for call in message.get("tool_calls") or ())
        return Counter(map(name_tool, (*self.tools, *calls)))


@dataclass(frozen=True)
class RowParser:
    """Parses records of one format into rows; `columns` maps our keys to the records' keys."""

    format: DataFormat
    columns: Mapping[str, str]

    def parse(self, line: int, record: Any, number: int = 0) -> Row:
        """Parse one record, the row with this `number`; raises `RowFault` with the reason."""
        if isinstance(record, RowFault):
            raise record
        if not isinstance(record, Mapping):
            raise RowFault("expected an object, found {}", show_value(record))
        ignored = self._find_ignored(record)
        with _limit_recursion():
            row = _PARSERS[self.format](line, _rename(record, self.columns))
        row = replace(row, ignored=(*ignored, *row.ignored), number=number)
        _check_limits(row)
        return row

    def _find_ignored(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys with values that the format does not use; raises `RowFault`.

        Keys that would change what is learned from the row are refused, not ignored.
        """
        used = _NEEDED_KEYS[self.format] + _OPTIONAL_KEYS[self.format]
        used_keys = {*self.columns.values(), *(key for key in used if key not in self.columns)}
        ignored = sorted(key for key in record if key not in used_keys and is_given(record[key]))
        for key in ignored:
            if reason := _explain_refusal(key, record[key], is_text=self.format == "text"):
                raise RowFault(reason)
        return tuple(ignored)


class ChatStart(NamedTuple):
    """The parsed beginning of chats, and their tools; `num_messages` is without a system prompt."""

    turns: Sequence[Turn]
    tools: tuple[Mapping[str, Any], ...]
    num_messages: int


def parse_chat_start(record: Mapping[str, Any], messages: Sequence[Any]) -> ChatStart:
    """Parse the first messages of a chat, with what a record has beside them; raises `RowFault`."""
    flag = record.get("parallel_tool_calls")  # no template uses it
    if not isinstance(flag, bool | None | str):
        raise RowFault("'parallel_tool_calls' is {}, expected true or false", show_value(flag))
    with _limit_recursion():
        tools = parse_tools(record)
        turns = _parse_messages(messages, 1, has_tools=bool(tools))
        return ChatStart([*_instruct(record), *turns], tools, len(messages))


def complete_chat(start: ChatStart, line: int, messages: Sequence[Any], number: int) -> Row:
    """Return the row of a chat that continues with `messages`; raises `RowFault`."""
    with _limit_recursion():
        turns = _parse_messages(messages, start.num_messages + 1, has_tools=bool(start.tools))
        row = _make_row(line, [*start.turns, *turns], start.tools)
    row = replace(row, number=number)
    _check_limits(row)
    return row


@contextmanager
def _limit_recursion() -> Iterator[None]:
    try:
        yield
    except RecursionError as exc:
        raise RowFault("nested too deeply, expected at most {} levels", MAX_DEPTH) from exc


def choose_parser(
    record: Any,
    format: DataFormat,  # noqa: A002 - the spec's name
    columns: Mapping[str, str],
) -> RowParser:
    """Choose the parser by the first row; 'auto' recognises the format.

    Raises `DataError` if the row has none of our formats, or lacks a column that is mapped.
    """
    keys = list(record) if isinstance(record, Mapping) else []
    check_columns(keys, columns, sorted(KNOWN_KEYS))
    if format != "auto":
        return RowParser(format, columns)
    found = _recognise(columns) or _recognise([*keys, *columns])
    if found is None:
        unmapped = [key for key in keys if key not in columns.values() and is_given(record[key])]
        reasons = (_explain_refusal(key, record[key], is_text=True) for key in unmapped)
        raise DataError(next(filter(None, reasons), None) or _describe_unknown(record, keys))
    return RowParser(found, columns)


def _explain_refusal(key: str, value: Any, *, is_text: bool) -> str | None:
    """Return why a row with a key cannot be learned from; None for a key that can be ignored.

    The reason is the pattern of a `RowFault` without values.
    """
    if key in MEDIA_KEYS:
        return f"it has {key!r}: {NO_MEDIA}"
    verdict = value.strip().lower() if isinstance(value, str) else value
    is_verdict = isinstance(verdict, int | str) and verdict in _VERDICTS
    if key in _PREFERENCE_KEYS or (key == "label" and is_verdict and not is_text):
        task = "" if key in _OTHER_MARKS else "train with task 'preference', or "
        return (
            f"it has {key!r}, which marks good and bad answers (DPO, KTO): without the mark bad "
            f"answers would be learned as good ones; {task}keep the good answers alone, without "
            "this key"
        )
    return None


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
    start = parse_chat_start(record, get_list(record, "messages", "message"))
    return _make_row(line, start.turns, start.tools)


def _parse_messages(messages: Sequence[Any], first_place: int, *, has_tools: bool) -> list[Turn]:
    """Parse messages in OpenAI's or ShareGPT's format, of which one may become several turns."""
    turns: list[Turn] = []
    for place, message in enumerate(messages, first_place):
        if isinstance(message, Mapping) and "from" in message and "role" not in message:
            turns += parse_sharegpt_message(place, message, has_tools=has_tools)
        else:
            turns.append(parse_message(place, message))
    return turns


def _parse_sharegpt(line: int, record: Mapping[str, Any]) -> Row:
    conversations = get_list(record, "conversations", "message")
    tools = parse_tools(record)
    turns = [
        turn
        for place, item in enumerate(conversations, 1)
        for turn in parse_sharegpt_message(place, item, has_tools=bool(tools))
    ]
    return _make_row(line, [*_instruct(record), *turns], tools)


def _parse_alpaca(line: int, record: Mapping[str, Any]) -> Row:
    question = get_text(record, "instruction")
    if record.get("input"):
        question += "\n\n" + get_text(record, "input")
    answer = Turn({"role": "assistant", "content": get_text(record, "output")}, is_learned=True)
    asked = Turn({"role": "user", "content": question})
    turns = [*_instruct(record), *_parse_history(record), asked, answer]
    return _make_row(line, turns, parse_tools(record))


def _parse_history(record: Mapping[str, Any]) -> list[Turn]:
    """Return the earlier turns of an Alpaca row, learned as in LLaMA-Factory; raises `RowFault`."""
    history = record.get("history")
    if isinstance(history, str) and history.strip():
        history = parse_json(history, "'history'")
    if not is_given(history) or history == "":
        return []
    if not isinstance(history, list):
        raise RowFault(
            "'history' is {}, expected a list of [question, answer] pairs", show_value(history)
        )
    turns: list[Turn] = []
    for place, pair in enumerate(history, 1):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowFault(
                "turn {} of 'history' is {}, expected a pair [question, answer]",
                place,
                show_value(pair),
            )
        named = {f"history[{place}][0]": pair[0], f"history[{place}][1]": pair[1]}
        question, answer = (get_text(named, key) for key in named)
        turns.append(Turn({"role": "user", "content": question}))
        turns.append(Turn({"role": "assistant", "content": answer}, is_learned=True))
    return turns


def _parse_completion(line: int, record: Mapping[str, Any]) -> Row:
    if not isinstance(record.get("prompt"), list):
        turns = _build_turns(record, get_text(record, "prompt"), get_text(record, "completion"))
        return _make_row(line, turns, parse_tools(record))
    prompt = get_list(record, "prompt", "message")
    completion = get_list(record, "completion", "message")
    turns = [parse_message(place, item) for place, item in enumerate([*prompt, *completion], 1)]
    asked = [Turn(turn.message) for turn in turns[: len(prompt)]]
    learned = turns[len(prompt) :]
    return _make_row(line, [*_instruct(record), *asked, *learned], parse_tools(record))


def _instruct(record: Mapping[str, Any]) -> list[Turn]:
    """Return the system message that a row has besides its turns, if any."""
    if not record.get("system"):
        return []
    return [Turn({"role": "system", "content": get_text(record, "system")})]


def _build_turns(record: Mapping[str, Any], question: str, answer: str) -> list[Turn]:
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


def _make_row(line: int, turns: Sequence[Turn], tools: tuple[Mapping[str, Any], ...] = ()) -> Row:
    if not any(turn.message["role"] == "assistant" for turn in turns):
        raise RowFault("no message is the assistant's, so there is nothing to learn")
    if not any(turn.is_learned for turn in turns):
        raise RowFault("no message of the assistant has weight 1, so there is nothing to learn")
    if tools:
        _check_encodable(tools)
    return Row(
        line,
        tuple(turn.message for turn in turns),
        tuple(turn.is_learned for turn in turns),
        tools,
        ignored=tuple(sorted({key for turn in turns for key in turn.ignored})),
    )


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
