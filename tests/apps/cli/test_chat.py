import json
from typing import cast

import pytest

from apps.http_api.dependencies import Services
from serving.errors import OverloadedError
from tests.apps.cli.conftest import Call
from tests.apps.conftest import Echo


def test_chat_prints_answer(call: Call) -> None:
    assert call("chat", "one two") == (0, "one two")
    assert call("chat", given="three four") == (0, "three four")
    answer = json.loads(call("chat", "one", "--json", "-m", "tiny", "--temperature", "0")[1])
    assert answer["choices"][0]["message"]["content"] == "one "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("chat", "x", "-m", "nobody"), "'nobody'"), (("chat", "--json"), "--json needs a question")],
)
def test_invalid_chat_command_prints_error(
    call: Call, arguments: tuple[str, ...], message: str
) -> None:
    status, output = call(*arguments)
    assert (status, message in output) == (1, True)


def test_refused_chat_prints_error(call: Call, services: Services) -> None:
    cast(Echo, services.text).failure = OverloadedError("no room now")
    assert call("chat", "x") == (1, "error: no room now")
