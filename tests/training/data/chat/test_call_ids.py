from typing import Any

from training.data.chat.call_ids import add_call_ids

CALL = {"type": "function", "function": {"name": "count", "arguments": {}}}
READS_IDS = "{{ tool_call.id }}"


def test_calls_and_results_are_numbered_in_order() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
    ]
    calls, first, second, other, third = add_call_ids(messages, READS_IDS)
    assert [call["id"] for call in calls["tool_calls"]] == ["call00001", "call00002"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("call00001", "call00002")
    assert other["tool_calls"][0]["id"] == third["tool_call_id"] == "call00003"


def test_existing_call_ids_are_kept() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{**CALL, "id": "mine"}, CALL]},
        {"role": "tool", "content": "2", "tool_call_id": "mine"},
        {"role": "tool", "content": "1"},
    ]
    calls, first, second = add_call_ids(messages, READS_IDS)
    assert [call["id"] for call in calls["tool_calls"]] == ["mine", "call00002"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("mine", "call00002")


def test_template_without_call_ids_leaves_messages_unchanged() -> None:
    messages = [{"role": "assistant", "tool_calls": [CALL]}]
    assert add_call_ids(messages, "{{ messages }}") is messages
