"""Parsing of a chat message in OpenAI's or ShareGPT's format to the form that templates take."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from templating.reasoning import REASONING_KEYS
from training.data.faults import RowFault, show_names, show_value
from training.data.row_limits import MAX_TOOLS, check_count

Message = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
# Flags for learning a message: of OpenAI and Axolotl, LLaMA-Factory; of Axolotl, ms-swift.
_WEIGHT_KEYS = ("weight", "loss_weight")
_SWITCH_KEYS = ("train", "loss")
_MESSAGE_KEYS = {
    *("role", "content", "name", "tool_calls", "tool_call_id"),
    *_WEIGHT_KEYS,
    *_SWITCH_KEYS,
}
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "function-call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function-response": "tool",
}
_CALLERS = ("function_call", "function-call", "tool_call")
_SHAREGPT_KEYS = {"from", "value", "name", "tool_call_id", *_WEIGHT_KEYS, *_SWITCH_KEYS}
MEDIA_KEYS = frozenset(
    name + ending
    for name in ("image", "audio", "video")
    for ending in ("", "s", "_path", "_paths", "_url", "_urls")
)
NO_MEDIA = (
    "images, audio and video cannot be learned yet; leave such rows out, or remove the key where "
    "the text makes sense alone"
)
_PARTLY_LEARNED = "train_detail"  # Axolotl's key for the spans of a message that are learned


@dataclass(frozen=True)
class Turn:
    """A message in the form that templates take, whether it is learned, and its ignored keys."""

    message: Message
    is_learned: bool = False
    ignored: tuple[str, ...] = ()


def parse_message(place: int, message: Any) -> Turn:
    """Parse one message of `messages`; raises `RowFault`."""
    if not isinstance(message, Mapping):
        raise RowFault("message {} is {}, expected an object", place, show_value(message))
    there = {key: value for key, value in message.items() if value is not None}
    role = there.get("role")
    if role not in _ROLES:
        raise RowFault(
            "message {} has the role {}, expected one of " + ", ".join(_ROLES),
            place,
            show_value(role),
        )
    known = _MESSAGE_KEYS.union(REASONING_KEYS if role == "assistant" else ())
    if extra := sorted(set(there) - known):
        raise RowFault(
            "message {} has the keys {}, which are not supported", place, show_names(extra)
        )
    if role == "assistant":
        return _parse_assistant(place, there)
    for key in (*_WEIGHT_KEYS, *_SWITCH_KEYS, "tool_calls"):
        if there.get(key):
            raise RowFault(f"message {{}} has {key!r}, which only the assistant's may", place)
    if role == "tool":
        return _parse_tool_result(there)
    role = "system" if role == "developer" else role
    return Turn({"role": role, "content": get_text(there, "content")})


def parse_sharegpt_message(place: int, item: Any, *, has_tools: bool = False) -> list[Turn]:
    """Parse one message of `conversations`; raises `RowFault`.

    A message in OpenAI's format is parsed as such. In a row with tools, Hermes' `<tool_call>` and
    `<tool_response>` blocks are calls and results; several results become several turns.
    """
    if not isinstance(item, Mapping):
        raise RowFault("message {} is {}, expected an object", place, show_value(item))
    there = {key: value for key, value in item.items() if value is not None}
    if "from" not in there and "role" in there:
        return [parse_message(place, there)]
    speaker = there.get("from")
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        raise RowFault(
            "message {} is from {}, expected one of " + ", ".join(_SHAREGPT_ROLES),
            place,
            show_value(speaker),
        )
    ignored = _find_ignored(place, there)
    role = _SHAREGPT_ROLES[speaker]
    kept = {key: there[key] for key in _SHAREGPT_KEYS - {"from", "value"} if key in there}
    turns = [
        parse_message(place, {**kept, **content, "role": role})
        for content in _read_contents(there, speaker, role, has_tools=has_tools)
    ]
    return [replace(turn, ignored=ignored) for turn in turns]


def _find_ignored(place: int, item: Mapping[str, Any]) -> tuple[str, ...]:
    extra = sorted(key for key in item.keys() - _SHAREGPT_KEYS if is_given(item[key]))
    for key in extra:
        if key in MEDIA_KEYS:
            raise RowFault(f"message {{}} has {key!r}: {NO_MEDIA}", place)
        if key == _PARTLY_LEARNED:
            raise RowFault(
                f"message {{}} has {key!r}, but a message is learned as a whole or not at all; "
                "split it into several messages, or set 'weight' to 0 or 1",
                place,
            )
    return tuple(f"conversations[].{key}" for key in extra)


def _read_contents(
    item: Mapping[str, Any], speaker: str, role: str, *, has_tools: bool
) -> list[dict[str, Any]]:
    """Return the contents and tool calls of a ShareGPT message: one for each of its results."""
    value = item.get("value")
    if speaker in _CALLERS:
        if isinstance(value, str) and "<tool_call>" in value:
            return [_split_calls(value)]
        calls = parse_json(value, f"'value' of a {speaker}")
        calls = calls if isinstance(calls, list) else [calls]
        return [{"tool_calls": [{"function": call} for call in calls]}]
    text = get_text(item, "value", may_be_empty=role == "tool")
    if has_tools and role == "assistant" and "<tool_call>" in text:
        return [_split_calls(text)]
    if has_tools and role == "tool":
        results, rest = _cut_blocks(text, "tool_response")
        if not rest.strip():
            return [{"content": result} for result in results or [text]]
    return [{"content": text}]


def _cut_blocks(text: str, tag: str) -> tuple[list[str], str]:
    """Extract the blocks between tags from a text, in linear time.

    Returns the blocks without surrounding space, and the rest of the text.
    """
    begin, end = f"<{tag}>", f"</{tag}>"
    blocks: list[str] = []
    rest: list[str] = []
    place = 0
    while (start := text.find(begin, place)) >= 0:
        stop = text.find(end, start)
        if stop < 0:
            break
        rest.append(text[place:start])
        blocks.append(text[start + len(begin) : stop].strip())
        place = stop + len(end)
    return blocks, "".join([*rest, text[place:]])


def _split_calls(text: str) -> dict[str, Any]:
    """Extract Hermes' `<tool_call>` blocks from a text; the rest is the content."""
    blocks, rest = _cut_blocks(text, "tool_call")
    calls = [parse_json(block, "a <tool_call> block") for block in blocks]
    rest = rest.strip()
    if not calls or "<tool_call>" in rest:
        raise RowFault("a <tool_call> has no end: {}", show_value(rest))
    return {"content": rest or None, "tool_calls": [{"function": call} for call in calls]}


def parse_tools(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Parse a row's top-level `tools`, a list or the JSON text of a list; raises `RowFault`."""
    tools = record.get("tools")
    if tools is None or tools in ("", []):
        return ()
    if isinstance(tools, str):
        tools = parse_json(tools, "'tools'")
    if not isinstance(tools, list):
        raise RowFault("'tools' is {}, expected a list of tools", show_value(tools))
    check_count(len(tools), MAX_TOOLS, "tools", "leave out those that it does not need")
    for tool in tools:
        if not name_tool(tool):
            raise RowFault("a tool is {}, expected a function with a name", show_value(tool))
    # For tools without the outer 'function', as in LLaMA-Factory, templates would render other text
    # than for OpenAI's format, which clients send.
    return tuple(
        tool if "function" in tool else {"type": "function", "function": tool} for tool in tools
    )


def is_given(value: Any) -> bool:
    """Return whether a key's value is not empty: tables have empty cells and nulls."""
    return value is not None and value not in ("", [], {})


def name_tool(tool: Any) -> str:
    """Return the name of a tool or tool call, with or without the outer 'function'; else ''."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def get_list(record: Mapping[str, Any], key: str, what: str) -> list[Any]:
    """Return the list under a key, or the list in its JSON text, as in CSV files.

    Raises `RowFault` if there is no list, or if it is empty.
    """
    value = record.get(key)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_json(value, repr(key))
    if value is None and key not in record:
        raise RowFault(f"{key!r} is missing, expected a list with at least one {what}")
    if not isinstance(value, list) or not value:
        raise RowFault(
            f"{key!r} is {{}}, expected a list with at least one {what}", show_value(value)
        )
    return value


def get_text(record: Mapping[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    """Return the text under a key, or its text parts joined with newlines; raises `RowFault`."""
    value = record.get(key)
    if isinstance(value, list):
        value = _join_parts(value, key)
    if value is None and key not in record:
        raise RowFault(f"{key!r} is missing, expected text")
    if not isinstance(value, str):
        raise RowFault(f"{key!r} is {{}}, expected text", show_value(value))
    if not may_be_empty and not value.strip():
        raise RowFault(f"{key!r} is empty, expected text")
    _check_characters(value, key)
    return value


def _check_characters(value: str, key: str) -> None:
    if "\0" in value:
        raise RowFault(f"{key!r} has a NUL character in it, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise RowFault(f"{key!r} has half a character (a lone surrogate) in it") from exc


def _join_parts(parts: list[Any], key: str) -> str:
    """Join text parts with newlines, as serving does."""
    for part in parts:
        if _read_part(part) is None:
            raise RowFault(
                f"{key!r} has the part {{}}, expected parts such as "
                "{{'type': 'text', 'text': '…'}}",
                show_value(part),
            )
    return "\n".join(str(_read_part(part)) for part in parts)


def _read_part(part: Any) -> str | None:
    """Return a part's text, under 'text' (OpenAI) or 'value' (LLaMA-Factory); None without it."""
    if not isinstance(part, Mapping) or part.get("type") != "text":
        return None
    found = [part[key] for key in ("text", "value") if part.get(key) is not None]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


def _parse_assistant(place: int, message: Mapping[str, Any]) -> Turn:
    is_learned = _read_weight(place, message)
    parsed: dict[str, Any] = {"role": "assistant"}
    calls = message.get("tool_calls")
    if calls:
        parsed["content"] = get_text(message, "content") if message.get("content") else None
        parsed["tool_calls"] = _parse_calls(calls)
    else:
        parsed["content"] = get_text(message, "content")
    if keys := [key for key in REASONING_KEYS if message.get(key)]:
        if len(keys) > 1:
            raise RowFault("message {} has {}, expected one of them", place, show_names(keys))
        parsed[REASONING_KEYS[0]] = get_text(message, keys[0])
    return Turn(parsed, is_learned=is_learned)


def _read_weight(place: int, message: Mapping[str, Any]) -> bool:
    """Return whether a message of the assistant is learned: true unless a known flag is off."""
    flags = {}
    for key in (*_WEIGHT_KEYS, *_SWITCH_KEYS):
        if key not in message:
            continue
        value = message[key]
        is_wrong_kind = isinstance(value, bool) and key in _WEIGHT_KEYS
        if is_wrong_kind or not isinstance(value, int | float) or value not in (0, 1):
            expected = "0 or 1" if key in _WEIGHT_KEYS else "true or false"
            raise RowFault(
                f"message {{}} has the {key} {{}}, expected {expected}: a message is learned as a "
                "whole or not at all",
                place,
                show_value(value),
            )
        flags[key] = bool(value)
    if len(set(flags.values())) > 1:
        raise RowFault(
            "message {} has the flags {}, which contradict each other; keep one of them",
            place,
            show_value(flags),
        )
    return all(flags.values())


def _parse_calls(calls: Any) -> list[Mapping[str, Any]]:
    if not isinstance(calls, list):
        raise RowFault("'tool_calls' is {}, expected a list", show_value(calls))
    return [_parse_call(call) for call in calls]


def _parse_call(call: Any) -> Mapping[str, Any]:
    """Parse one tool call; templates take arguments as an object, OpenAI's format has JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise RowFault("a tool call is {}, expected a function with a name", show_value(call))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_json(arguments, "'arguments' of a tool call")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        raise RowFault(
            "'arguments' of a tool call are {}, expected an object", show_value(arguments)
        )
    _check_characters(json.dumps(arguments, ensure_ascii=False, default=str), "arguments")
    _check_characters(name, "name")
    kept = {key: call[key] for key in ("id",) if isinstance(call.get(key), str)}
    for key, value in kept.items():
        _check_characters(value, key)
    called = {"name": name, "arguments": arguments}
    return {**kept, "type": "function", "function": called}


def _parse_tool_result(message: Mapping[str, Any]) -> Turn:
    parsed = {"role": "tool", "content": get_text(message, "content", may_be_empty=True)}
    for key in ("name", "tool_call_id"):
        if key in message:
            parsed[key] = get_text(message, key)
    return Turn(parsed)


def parse_json(text: Any, what: str) -> Any:
    """Parse JSON text; a value that is not text is returned unchanged. Raises `RowFault`."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RowFault(f"{what} is not JSON: {{}}", show_value(text)) from exc
