"""One message of a chat, in OpenAI's or ShareGPT's shape, to the shape that templates take."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from templating.reasoning import REASONING_KEYS
from training.data.faults import RowFault, show_names, show_value
from training.data.row_limits import MAX_TOOLS, check_count

Message = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE_KEYS = {"role", "content", "name", "weight", "tool_calls", "tool_call_id"}
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}


@dataclass(frozen=True)
class Turn:
    """A message as templates take it, and whether it is learned."""

    message: Message
    is_learned: bool = False


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
    for key in ("weight", "tool_calls"):
        if there.get(key):
            raise RowFault(f"message {{}} has {key!r}, which only the assistant's may", place)
    if role == "tool":
        return _parse_tool_result(there)
    role = "system" if role == "developer" else role
    return Turn({"role": role, "content": get_text(there, "content")})


def parse_sharegpt_message(place: int, item: Any) -> Turn:
    """Parse one message of `conversations`; raises `RowFault`."""
    if not isinstance(item, Mapping):
        raise RowFault("message {} is {}, expected an object", place, show_value(item))
    speaker = item.get("from")
    if speaker is None and "role" in item:
        raise RowFault(
            "message {} has 'role' where ShareGPT has 'from'; set format to 'chat' and columns to "
            "{{'messages': 'conversations'}}",
            place,
        )
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        raise RowFault(
            "message {} is from {}, expected one of " + ", ".join(_SHAREGPT_ROLES),
            place,
            show_value(speaker),
        )
    role = _SHAREGPT_ROLES[speaker]
    if speaker == "function_call":
        calls = _parse_json(item.get("value"), "'value' of a function_call")
        calls = calls if isinstance(calls, list) else [calls]
        message = {"role": role, "tool_calls": [{"function": call} for call in calls]}
    else:
        message = {"role": role, "content": get_text(item, "value", may_be_empty=role == "tool")}
    return parse_message(place, {**message, "weight": item.get("weight")})


def parse_tools(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Parse a row's top-level `tools`, a list or JSON text of one; raises `RowFault`."""
    tools = record.get("tools")
    if tools is None or tools in ("", []):
        return ()
    if isinstance(tools, str):
        tools = _parse_json(tools, "'tools'")
    if not isinstance(tools, list):
        raise RowFault("'tools' is {}, expected a list of tools", show_value(tools))
    check_count(len(tools), MAX_TOOLS, "tools", "leave out those that it does not need")
    for tool in tools:
        if not name_tool(tool):
            raise RowFault("a tool is {}, expected a function with a name", show_value(tool))
    return tuple(tools)


def name_tool(tool: Any) -> str:
    """The name of a tool or of a tool call, with or without the outer 'function'; else ''."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def get_list(record: Mapping[str, Any], key: str, what: str) -> list[Any]:
    """The list under a key, or the one that JSON text there holds, as CSV has it.

    Raises `RowFault` if there is none, or if it is empty.
    """
    value = record.get(key)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parse_json(value, repr(key))
    if value is None and key not in record:
        raise RowFault(f"{key!r} is missing, expected a list with at least one {what}")
    if not isinstance(value, list) or not value:
        raise RowFault(
            f"{key!r} is {{}}, expected a list with at least one {what}", show_value(value)
        )
    return value


def get_text(record: Mapping[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    """The text under a key, or text parts joined with line ends; raises `RowFault`."""
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
    """Join text parts with line ends, as serving does."""
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RowFault(
                f"{key!r} has the part {{}}, expected parts such as "
                "{{'type': 'text', 'text': '…'}}",
                show_value(part),
            )
    return "\n".join(part["text"] for part in parts)


def _parse_assistant(place: int, message: Mapping[str, Any]) -> Turn:
    weight = message.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise RowFault("message {} has the weight {}, expected 0 or 1", place, show_value(weight))
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
    return Turn(parsed, is_learned=weight == 1)


def _parse_calls(calls: Any) -> list[Mapping[str, Any]]:
    if not isinstance(calls, list):
        raise RowFault("'tool_calls' is {}, expected a list", show_value(calls))
    return [_parse_call(call) for call in calls]


def _parse_call(call: Any) -> Mapping[str, Any]:
    """Parse one tool call; templates take its arguments as an object, OpenAI has them as text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise RowFault("a tool call is {}, expected a function with a name", show_value(call))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parse_json(arguments, "'arguments' of a tool call")
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


def _parse_json(text: Any, what: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RowFault(f"{what} is not JSON: {{}}", show_value(text)) from exc
