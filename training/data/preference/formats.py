"""Conversion of a record of any preference format to a `PreferenceRow`.

Each answer becomes a chat row of its own: the prompt and the answer, of which only the answer is
learned. So both answers are rendered and tokenised exactly as rows of a language model are.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from training.data.columns import check_columns
from training.data.faults import DataError, RowFault, show_names, show_value
from training.data.text.formats import ChatStart, Row, complete_chat, parse_chat_start
from training.data.text.messages import is_given

KNOWN_KEYS = (
    *("input", "preferred_output", "non_preferred_output"),
    *("prompt", "chosen", "rejected", "conversations", "completion", "label"),
    *("system", "tools"),
)
_ANSWERS = {
    "openai_preference": ("preferred_output", "non_preferred_output"),
    "preference": ("chosen", "rejected"),
    "sharegpt_preference": ("chosen", "rejected"),
}
_USED = {
    "openai_preference": {"input", *_ANSWERS["openai_preference"]},
    "preference": {"prompt", "chosen", "rejected", "system", "tools"},
    "sharegpt_preference": {"conversations", "chosen", "rejected", "system", "tools"},
    "unpaired": {"prompt", "completion", "label", "system", "tools"},
}
_EXPECTED = (
    "expected 'prompt', 'chosen' and 'rejected', or 'input', 'preferred_output' and "
    "'non_preferred_output', or 'conversations', 'chosen' and 'rejected'"
)
_UNPAIRED = "; for the loss 'kto' also 'prompt', 'completion' and 'label'"
_PLAIN_KEYS = ("messages", "completion", "output", "text", "conversations")


class Answer(NamedTuple):
    """A prompt with an answer as a chat row, and whether the answer is a good one."""

    row: Row
    is_desirable: bool


@dataclass(frozen=True)
class PreferenceRow:
    """One parsed record: a good and a bad answer in this order, or a single answer for KTO."""

    line: int
    answers: tuple[Answer, ...]
    ignored: tuple[str, ...] = ()
    number: int = 0

    @property
    def size_bytes(self) -> int:
        """The total size of its content."""
        return sum(answer.row.size_bytes for answer in self.answers)


@dataclass(frozen=True)
class PreferenceParser:
    """Parses records of one format; `columns` maps our keys to the records' keys."""

    format: str
    columns: Mapping[str, str]

    def parse(self, line: int, record: Any, number: int) -> PreferenceRow:
        """Parse one record, the row with this `number`; raises `RowFault` with the reason."""
        if isinstance(record, RowFault):
            raise record
        if not isinstance(record, Mapping):
            raise RowFault("expected an object, found {}", show_value(record))
        renamed = {**record, **{ours: record.get(name) for ours, name in self.columns.items()}}
        used = {*self.columns.values(), *_USED[self.format]}
        ignored = sorted(key for key in record if key not in used and is_given(record[key]))
        parse = self._parse_unpaired if self.format == "unpaired" else self._parse_pair
        answers = parse(line, renamed, number)
        return PreferenceRow(line, answers, tuple(ignored), number)

    def _parse_pair(self, line: int, record: Mapping[str, Any], number: int) -> tuple[Answer, ...]:
        sides = [_read_side(record, key) for key in _ANSWERS[self.format]]
        prompt, sides = self._split_prompt(record, sides)
        names = _ANSWERS[self.format]
        if sides[0] == sides[1]:
            raise RowFault(
                "{} and {} are equal, expected two different answers", *map(show_value, names)
            )
        is_openai = self.format == "openai_preference"
        start = _parse_prompt(record["input"] if is_openai else record, prompt, names[0])
        return tuple(
            Answer(_make_row(line, start, side, number, name), place == 0)
            for place, (side, name) in enumerate(zip(sides, names, strict=True))
        )

    def _split_prompt(
        self, record: Mapping[str, Any], sides: list[list[Any]]
    ) -> tuple[list[Any], list[list[Any]]]:
        """Return the prompt, and both answers without it; all are lists of messages."""
        if self.format == "openai_preference":
            given = record.get("input")
            if not isinstance(given, Mapping):
                raise RowFault(
                    "'input' is {}, expected an object with 'messages'", show_value(given)
                )
            return _read_messages(given, "messages"), sides
        if self.format == "sharegpt_preference":
            return _read_messages(record, "conversations"), sides
        if all(_find_role(side[0]) not in ("assistant", "gpt") for side in sides):
            return _split_chats(sides)  # 'prompt' may repeat their beginning
        if not is_given(record.get("prompt")):
            raise RowFault("'prompt' is missing, expected text or a list of messages")
        return _read_messages(record, "prompt"), sides

    def _parse_unpaired(
        self, line: int, record: Mapping[str, Any], number: int
    ) -> tuple[Answer, ...]:
        verdict = record.get("label")
        if not isinstance(verdict, bool):
            raise RowFault("'label' is {}, expected true or false", show_value(verdict))
        side = _read_side(record, "completion")
        start = _parse_prompt(record, _read_messages(record, "prompt"), "completion")
        return (Answer(_make_row(line, start, side, number, "completion"), verdict),)


def choose_parser(
    record: Any, columns: Mapping[str, str], *, allows_unpaired: bool
) -> PreferenceParser:
    """Choose the parser by the first row; raises `DataError` if it has none of our formats."""
    keys = list(record) if isinstance(record, Mapping) else []
    check_columns(keys, columns, sorted(KNOWN_KEYS))
    there = {*keys, *columns}
    found = recognise_format(there)
    if found is None or (found == "unpaired" and not allows_unpaired):
        raise DataError(_describe_unknown(keys, found, allows_unpaired=allows_unpaired))
    return PreferenceParser(found, columns)


def recognise_format(there: set[str]) -> str | None:
    """Recognise a format; one side is enough, so that a missing one is the fault of its row."""
    if there & {"preferred_output", "non_preferred_output"}:
        return "openai_preference"
    if there & {"chosen", "rejected"}:
        return "sharegpt_preference" if "conversations" in there else "preference"
    return "unpaired" if there >= {"prompt", "completion", "label"} else None


def _describe_unknown(keys: Sequence[str], found: str | None, *, allows_unpaired: bool) -> str:
    named = show_names(sorted(keys)) or "none"
    expected = _EXPECTED + (_UNPAIRED if allows_unpaired else "")
    if found == "unpaired":
        return (
            f"the first row has the keys {named}: one answer with a verdict, from which only the "
            f"loss 'kto' learns; set task_settings.loss to 'kto', or give pairs: {expected}"
        )
    message = f"the first row has the keys {named}; {expected}"
    if any(key in keys for key in _PLAIN_KEYS):
        return (
            f"{message}; rows with one answer and no verdict are for task 'causal_lm', the method "
            "'supervised': train that, or add the answer that is not preferred"
        )
    return message


def _read_side(record: Mapping[str, Any], key: str) -> list[Any]:
    """Return an answer as messages; raises `RowFault` for a missing side."""
    value = record.get(key)
    if isinstance(value, str) and value.strip():
        return [{"role": "assistant", "content": value}]
    if isinstance(value, Mapping) and value:
        return [value]
    if isinstance(value, list) and value:
        return value
    if value is None:
        raise RowFault(f"{key!r} is missing, expected an answer: text or a list of messages")
    raise RowFault(
        f"{key!r} is {{}}, expected an answer: text or a list of messages", show_value(value)
    )


def _read_messages(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key)
    if isinstance(value, str) and value.strip():
        return [{"role": "user", "content": value}]
    if isinstance(value, list) and value:
        return value
    raise RowFault(f"{key!r} is {{}}, expected text or a list of messages", show_value(value))


def _find_role(message: Any) -> Any:
    return message.get("role", message.get("from")) if isinstance(message, Mapping) else None


def _split_chats(sides: Sequence[list[Any]]) -> tuple[list[Any], list[list[Any]]]:
    """Split two whole chats at the first message that differs, which must be an answer."""
    num_shared = 0
    for one, other in zip(*sides, strict=False):
        if one != other:
            break
        num_shared += 1
    rest = [side[num_shared:] for side in sides]
    if not any(rest):
        raise RowFault("'chosen' and 'rejected' are equal, expected two different answers")
    for side in rest:
        if not side or _find_role(side[0]) not in ("assistant", "gpt"):
            raise RowFault(
                "'chosen' and 'rejected' differ in message {}, which is not an answer of the "
                "assistant in both: expected chats with the same prompt",
                num_shared + 1,
            )
    return sides[0][:num_shared], rest


def _parse_prompt(record: Mapping[str, Any], prompt: list[Any], name: str) -> ChatStart:
    """Parse what the answers of a row share; a fault is reported as one of the answer `name`."""
    names = ("system", "tools", "parallel_tool_calls")
    extras = {name: record[name] for name in names if is_given(record.get(name))}
    with _explain_fault(name):
        return parse_chat_start(extras, prompt)


def _make_row(line: int, start: ChatStart, answer: list[Any], number: int, name: str) -> Row:
    """Build the chat row of one answer, of which only the answer is learned."""
    with _explain_fault(name):
        row = complete_chat(start, line, answer, number)
    if row.messages[-1]["role"] != "assistant":
        raise RowFault(f"{name!r} ends with a message that is not the assistant's")
    num_before = len(start.turns)
    learned = (*(False,) * num_before, *row.learned[num_before:])
    if not any(learned):
        raise RowFault(f"no message of {name!r} is the assistant's and has weight 1")
    return replace(row, learned=learned)


@contextmanager
def _explain_fault(name: str) -> Iterator[None]:
    try:
        yield
    except RowFault as fault:
        raise RowFault(f"{name!r} with its prompt cannot be used: {{}}", fault) from fault
