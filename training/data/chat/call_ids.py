"""Ids of tool calls for templates that require them, in rows without ids."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_DEMANDS = re.compile(r"""call(\.id\b|\[['"]id['"]\])|tool_call_id""")


def add_call_ids(
    messages: Sequence[Mapping[str, Any]], template: str
) -> Sequence[Mapping[str, Any]]:
    """Add ids to tool calls and results that have none, if the template reads ids.

    An id has nine letters and digits, as Mistral's templates expect. The results after a message
    belong to its calls, in order.
    """
    if not _DEMANDS.search(template):
        return messages
    arranged: list[Mapping[str, Any]] = []
    open_ids: list[str] = []
    number = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            numbered = []
            for call in calls:
                number += 1
                numbered.append({"id": f"call{number:05d}", **call})
            open_ids = [str(call["id"]) for call in numbered]
            message = {**message, "tool_calls": numbered}
        elif message["role"] == "tool":
            given = message.get("tool_call_id") or (open_ids[0] if open_ids else None)
            if given in open_ids:
                open_ids.remove(given)
            if given is not None:
                message = {**message, "tool_call_id": given}
        arranged.append(message)
    return arranged
