"""Rows to token sequences, with the part that is learned marked.

A row is checked before anything starts: every bad one is named with its line and the reason.
The model's own chat template renders a row here and a chat at serving time, so that both agree to
the token.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from training.spec import DataFormat

ROLES = ("system", "user", "assistant")
_MAX_FAULTS_SHOWN = 20
_NO_SPACE = re.compile(r"\S")


class DataError(ValueError):
    """The rows cannot be learned from; the message names the lines and the reasons."""


@dataclass(frozen=True)
class Row:
    """One row as written: its line in the file and either messages or plain text."""

    line: int
    messages: tuple[Mapping[str, str], ...] = ()
    text: str | None = None


@dataclass(frozen=True)
class EncodedRow:
    """One row as tokens; `learned[i]` says whether the loss counts the prediction of token `i`."""

    line: int
    input_ids: list[int]
    learned: list[bool]
    truncated_tokens: int = 0

    @property
    def num_learned(self) -> int:
        """Tokens that the loss counts; the first token of a row is never predicted."""
        return sum(self.learned[1:])


def read_rows(path: Path, format: DataFormat = "auto") -> tuple[DataFormat, list[Row]]:  # noqa: A002 - the spec's own word
    """Read a JSON or JSONL file; returns the format recognised and the rows.

    Raises `DataError` for a file that is missing, not text, empty, or has bad rows.
    """
    records = list(_read_records(path))
    if not records:
        raise DataError(f"{path.name} holds no rows: expected at least one")
    found = recognise_format(records[0][1]) if format == "auto" else format
    rows: list[Row] = []
    faults: list[str] = []
    for line, record in records:
        try:
            rows.append(parse_row(line, record, found))
        except ValueError as exc:
            faults.append(f"line {line}: {exc}")
    _raise_faults(path.name, faults, len(records))
    return found, rows


def recognise_format(record: Any) -> DataFormat:
    """Tell the format by the keys of a row; raises `DataError` if it is none of ours."""
    keys = set(record) if isinstance(record, Mapping) else set()
    if "messages" in keys:
        return "chat"
    if {"prompt", "completion"} <= keys:
        return "prompt_completion"
    if {"instruction", "output"} <= keys:
        return "alpaca"
    if "text" in keys:
        return "text"
    found = f"the keys {sorted(keys)}" if keys else f"{json.dumps(record)[:80]}"
    raise DataError(
        f"the first row has {found}; expected an object with 'messages', with 'prompt' and "
        "'completion', with 'instruction' and 'output', or with 'text'"
    )


def parse_row(line: int, record: Any, format: DataFormat) -> Row:  # noqa: A002 - the spec's own word
    """Turn one record into a `Row`; raises `ValueError` that says what is wrong with it."""
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {json.dumps(record)[:80]}")
    if format == "text":
        return Row(line, text=_get_text(record, "text"))
    if format == "chat":
        return Row(line, _parse_messages(record.get("messages")))
    if format == "alpaca":
        question = _get_text(record, "instruction")
        if record.get("input"):
            question += "\n\n" + _get_text(record, "input")
        answer = _get_text(record, "output")
    else:
        question, answer = _get_text(record, "prompt"), _get_text(record, "completion")
    return Row(
        line, ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    )


def encode_rows(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[EncodedRow]:
    """Render and tokenise rows; a sequence has at most `max_length` tokens.

    Raises `DataError` for rows that the template refuses, or of which nothing is left to learn.
    """
    encoded: list[EncodedRow] = []
    faults: list[str] = []
    for row in rows:
        try:
            encoded.append(encode_row(row, tokenizer, max_length))
        except ValueError as exc:
            faults.append(f"line {row.line}: {exc}")
    _raise_faults("the data", faults, len(rows))
    return encoded


def encode_row(row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedRow:
    """Tokenise one row: the assistant's tokens are learned, or all of a plain text.

    Raises `ValueError` if nothing is left to learn within `max_length`.
    """
    if row.text is not None:
        input_ids = _encode_text(row.text, tokenizer)
        learned = [True] * len(input_ids)
    elif tokenizer.chat_template is None:
        input_ids, learned = _encode_without_template(row.messages, tokenizer)
    else:
        try:
            input_ids, learned = encode_chat(row.messages, tokenizer)
        except jinja2.TemplateError as exc:
            raise ValueError(f"the model's chat template refuses it: {exc}") from exc
    num_cut = max(0, len(input_ids) - max_length)
    encoded = EncodedRow(row.line, input_ids[:max_length], learned[:max_length], num_cut)
    if encoded.num_learned == 0:
        raise ValueError(
            f"nothing is left to learn: none of the answer is within the first {max_length} tokens "
            f"of {len(input_ids)}; shorten the prompt or raise max_length"
        )
    return encoded


def encode_chat(
    messages: Sequence[Mapping[str, str]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """Render a chat with the model's template; returns token ids and the learned mask.

    A template with generation markers says itself which tokens are the assistant's. For one
    without, they are found as what each assistant message adds to the rendered text after the
    generation prompt.
    """
    chat = [dict(message) for message in messages]
    if "{% generation %}" in _get_template(tokenizer):
        encoded = tokenizer.apply_chat_template(
            chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return list(encoded["input_ids"]), [bool(mark) for mark in encoded["assistant_masks"]]
    spans = _find_assistant_spans(chat, tokenizer)
    text = _render(chat, tokenizer)
    plain = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learned = [
        any(start < span_end and end > span_start for span_start, span_end in spans)
        for start, end in plain["offset_mapping"]
    ]
    return list(plain["input_ids"]), learned


def _find_assistant_spans(
    chat: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int, int]]:
    text = _render(chat, tokenizer)
    spans = []
    for index, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before = _render(chat[:index], tokenizer, add_generation_prompt=True)
        after = _render(chat[: index + 1], tokenizer)
        if not (after.startswith(before) and text.startswith(after)):
            raise ValueError(
                f"the model's chat template rewrites earlier turns, so message {index + 1} cannot "
                "be found again in the whole; add {% generation %} markers to the template"
            )
        spans.append((len(before), len(after)))
    return spans


def _render(
    chat: list[dict[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    add_generation_prompt: bool = False,
) -> str:
    return str(
        tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    )


def _get_template(tokenizer: PreTrainedTokenizerBase) -> str:
    template = str(tokenizer.get_chat_template())
    return template.replace("{%-", "{%").replace("-%}", "%}")


def _encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    input_ids = list(tokenizer(text)["input_ids"])
    eos = tokenizer.eos_token_id
    return input_ids if eos is None or input_ids[-1:] == [eos] else [*input_ids, eos]


def _encode_without_template(
    messages: Sequence[Mapping[str, str]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """Join prompt and completion as they are: a base model without a chat template."""
    if [message["role"] for message in messages] != ["user", "assistant"]:
        raise ValueError(
            "the base model has no chat template, so only rows of one prompt and one answer can be "
            "learned; use a chat model or 'prompt'/'completion' rows"
        )
    prompt = list(tokenizer(messages[0]["content"])["input_ids"])
    answer = list(tokenizer(messages[1]["content"], add_special_tokens=False)["input_ids"])
    if tokenizer.eos_token_id is not None:
        answer.append(tokenizer.eos_token_id)
    return prompt + answer, [False] * len(prompt) + [True] * len(answer)


def _read_records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"no file at {str(path)!r}: expected rows as JSON or JSONL") from None
    except IsADirectoryError:
        raise DataError(f"{str(path)!r} is a folder: expected a file of rows") from None
    except UnicodeDecodeError as exc:
        raise DataError(
            f"{path.name} is not text: byte {exc.start} is not UTF-8; expected JSON or JSONL"
        ) from exc
    if text.lstrip()[:1] == "[":
        return _read_array(path.name, text)
    return _read_lines(path.name, text)


def _read_lines(name: str, text: str) -> Iterator[tuple[int, Any]]:
    records: list[tuple[int, Any]] = []
    faults: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append((number, json.loads(line)))
        except json.JSONDecodeError as exc:
            faults.append(f"line {number}: not JSON ({exc.msg} at column {exc.colno})")
        except (ValueError, RecursionError) as exc:  # numbers or nesting beyond Python's limits
            faults.append(f"line {number}: cannot be read ({exc})")
    _raise_faults(name, faults, len(records) + len(faults))
    return iter(records)


def _read_array(name: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yield each element of a JSON array with the line on which it begins."""
    decoder = json.JSONDecoder()
    position = _skip_space(text, text.index("[") + 1)
    line, counted = 1, 0
    is_open = text[position : position + 1] != "]"
    while is_open:
        line, counted = line + text.count("\n", counted, position), position
        try:
            record, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as exc:
            raise DataError(f"{name}, line {exc.lineno}: not JSON ({exc.msg})") from exc
        except (ValueError, RecursionError) as exc:
            raise DataError(f"{name}, line {line}: cannot be read ({exc})") from exc
        yield line, record
        position = _skip_space(text, position)
        mark = text[position : position + 1]
        if mark not in (",", "]"):
            raise DataError(f"{name}, line {line}: expected ',' or ']' after the row")
        is_open = mark == ","
        position = _skip_space(text, position + 1) if is_open else position
    rest = _skip_space(text, position + 1)
    if rest < len(text):
        line = 1 + text.count("\n", 0, rest)
        raise DataError(f"{name}, line {line}: expected nothing after the array's ']'")


def _skip_space(text: str, position: int) -> int:
    found = _NO_SPACE.search(text, position)
    return found.start() if found else len(text)


def _parse_messages(messages: Any) -> tuple[Mapping[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' should be a list with at least one message")
    parsed = tuple(_parse_message(index, message) for index, message in enumerate(messages, 1))
    if not any(message["role"] == "assistant" for message in parsed):
        raise ValueError("no message is the assistant's, so there is nothing to learn")
    return parsed


def _parse_message(index: int, message: Any) -> Mapping[str, str]:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {index} is {json.dumps(message)[:80]}, expected an object")
    if message.get("role") not in ROLES:
        raise ValueError(
            f"message {index} has the role {message.get('role')!r}, expected one of {list(ROLES)}"
        )
    if extra := set(message) - {"role", "content", "name"}:
        raise ValueError(f"message {index} has the keys {sorted(extra)}, which are not supported")
    return {"role": message["role"], "content": _get_text(message, "content")}


def _get_text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is {json.dumps(value)[:80]}, expected text")
    if not value.strip():
        raise ValueError(f"{key!r} is empty, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ValueError(f"{key!r} has half a character (a lone surrogate) in it") from exc
    return value


def _raise_faults(name: str, faults: list[str], num_rows: int) -> None:
    if not faults:
        return
    shown = "; ".join(faults[:_MAX_FAULTS_SHOWN])
    more = len(faults) - _MAX_FAULTS_SHOWN
    raise DataError(
        f"{name}: {len(faults)} of {num_rows} rows cannot be used: {shown}"
        + (f"; and {more} more" if more > 0 else "")
    )
