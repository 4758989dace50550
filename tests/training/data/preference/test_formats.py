from typing import Any

import pytest

from training.data.faults import DataError, RowFault
from training.data.preference.formats import PreferenceRow, choose_parser

ASKED = {"role": "user", "content": "When?"}
GOOD = {"role": "assistant", "content": "At nine."}
BAD = {"role": "assistant", "content": "No."}
PAIRS: dict[str, dict[str, Any]] = {
    "OpenAI": {
        "input": {"messages": [ASKED]},
        "preferred_output": [GOOD],
        "non_preferred_output": [BAD],
    },
    "texts": {"prompt": "When?", "chosen": "At nine.", "rejected": "No."},
    "messages": {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    "chats": {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "chats with a prompt": {"prompt": "When?", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "When?"}],
        "chosen": {"from": "gpt", "value": "At nine."},
        "rejected": {"from": "gpt", "value": "No."},
    },
}


def parse(record: dict[str, Any], first: Any = None, *, is_unpaired: bool = False) -> PreferenceRow:
    parser = choose_parser(first or record, {}, allows_unpaired=is_unpaired)
    return parser.parse(3, record, 1)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_all_formats_become_the_same_chats(name: str) -> None:
    row = parse(PAIRS[name])
    good, bad = row.answers
    assert list(good.row.messages) == [ASKED, GOOD]
    assert list(bad.row.messages) == [ASKED, BAD]
    assert good.row.learned == bad.row.learned == (False, True)
    assert (good.is_desirable, bad.is_desirable) == (True, False)
    assert row.ignored == ()


def test_earlier_answers_are_not_learned() -> None:
    row = parse({"prompt": [ASKED, BAD, ASKED], "chosen": [GOOD], "rejected": [BAD]})
    assert row.answers[0].row.learned == (False, False, False, True)


def test_other_keys_may_have_names_of_openai() -> None:
    assert parse({**PAIRS["texts"], "input": "a column"}).ignored == ("input",)
    with pytest.raises(RowFault, match="^'input' is null, expected an object"):
        parse({"preferred_output": [GOOD], "non_preferred_output": [BAD]})


def test_results_of_tools_in_one_message_are_not_learned() -> None:
    results = "<tool_response>1</tool_response><tool_response>2</tool_response>"
    asked = [{"from": "human", "value": "When?"}]
    answer = [
        {"from": "gpt", "value": '<tool_call>{"name": "a", "arguments": {}}</tool_call>'},
        {"from": "tool", "value": results},
        {"from": "gpt", "value": "At nine."},
    ]
    row = parse({"conversations": asked, "chosen": answer, "rejected": [BAD]})
    messages, learned = row.answers[0].row.messages, row.answers[0].row.learned
    wanted = tuple(message["role"] == "assistant" for message in messages)
    assert learned == wanted


class CountedMessage(dict[str, str]):
    """A message that counts how often it is parsed."""

    num_parsed = 0

    def items(self) -> Any:
        self.num_parsed += 1
        return super().items()


def test_prompt_is_parsed_once() -> None:
    asked, good, bad = CountedMessage(ASKED), CountedMessage(GOOD), CountedMessage(BAD)
    row = parse({"prompt": [asked], "chosen": [good], "rejected": [bad]})
    assert [answer.row.messages for answer in row.answers] == [(ASKED, GOOD), (ASKED, BAD)]
    assert [message.num_parsed for message in (asked, good, bad)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": [{"role": "user"}]}, "'content' is missing"),
        ({"chosen": [{"role": "bot", "content": "a"}]}, 'message 2 has the role "bot"'),
        ({"rejected": [BAD, {"role": "bot", "content": "a"}]}, 'message 3 has the role "bot"'),
        ({"tools": "["}, "'tools' is not JSON"),
    ],
)
def test_fault_names_answer_and_place_in_its_chat(change: dict[str, Any], reason: str) -> None:
    name = "rejected" if "rejected" in change else "chosen"
    with pytest.raises(RowFault, match=f"^'{name}' with its prompt cannot be used: {reason}"):
        parse({**PAIRS["messages"], **change})


def test_single_answers_have_a_verdict() -> None:
    record = {"prompt": "When?", "completion": "No.", "label": False}
    row = parse(record, is_unpaired=True)
    assert [answer.is_desirable for answer in row.answers] == [False]
    with pytest.raises(DataError, match=r"only the loss 'kto' learns"):
        parse(record)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal"),
        ({"chosen": [ASKED, GOOD], "rejected": [ASKED, GOOD]}, "are equal"),
        ({"prompt": "a", "chosen": "b"}, "'rejected' is missing"),
        ({"prompt": "a", "rejected": "b"}, "'chosen' is missing"),
        ({"prompt": "a", "chosen": " ", "rejected": "b"}, "'chosen' is"),
        ({"chosen": "a", "rejected": "b"}, "'prompt' is missing"),
        (
            {"chosen": [ASKED, GOOD], "rejected": [{**ASKED, "content": "Who?"}, BAD]},
            "differ in message 1",
        ),
    ],
)
def test_rows_that_are_no_pair_are_refused(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowFault, match=reason):
        parse(record, PAIRS["texts"] if "prompt" in record else PAIRS["chats"])


@pytest.mark.parametrize(
    "record", [{"messages": [ASKED, GOOD]}, {"prompt": "a", "completion": "b"}, {"text": "a"}]
)
def test_plain_rows_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="are for task 'causal_lm'"):
        parse(record)
