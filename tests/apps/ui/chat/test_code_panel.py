"""The request that the panel shows."""

import pytest

from apps.ui.chat.code_panel import find_origin, find_request
from apps.ui.chat.conversation import Conversation, Turn

QUESTION, ANSWER = Turn("user", "hello"), Turn("assistant", "Hello")


def test_request_ends_with_the_last_question() -> None:
    whole = Conversation((QUESTION, ANSWER, QUESTION, ANSWER), "latest", "tuned", "tuned")
    found = find_request(whole)
    assert found is not None
    assert found.turns == (QUESTION, ANSWER, QUESTION)
    assert found.model_id == "tuned"
    assert find_request(Conversation()) is None


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ({"origin": "https://tune.example", "host": "10.0.0.1:8000"}, "https://tune.example"),
        ({"origin": "null", "host": "10.0.0.1:8000"}, "http://10.0.0.1:8000"),
        ({"host": "localhost:8000"}, "http://localhost:8000"),
    ],
)
def test_address_is_that_of_the_browser(headers: dict[str, str], origin: str) -> None:
    assert find_origin(headers) == origin
