"""Settings of answers, as a browser sends them and keeps them."""

import json
import re
from html import escape, unescape
from typing import Any

import pytest

from apps.client.text import Message, Sampling
from apps.ui.chat.sampling_settings import (
    FIELDS,
    AnswerSettings,
    check_settings,
    get_defaults,
    render_panel,
)

DEFAULTS = get_defaults()


def test_defaults_are_valid() -> None:
    settings, faults = check_settings(DEFAULTS)
    assert faults == {}
    assert settings == AnswerSettings("", Sampling(0, 128, 1, None, None), sends_earlier=True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 2.5, "Temperature is 2.5: enter a number from 0 to 2."),
        ("temperature", None, "Temperature is empty: enter a number."),
        ("temperature", float("nan"), "Temperature is nan: enter a number."),
        ("temperature", True, "Temperature is True: enter a number."),
        ("top_p", -1, "Top-p is -1: enter a number from 0 to 1."),
        ("seed", 1.5, "Seed is 1.5: enter a whole number."),
        ("max_tokens", 0, "Maximum number of tokens is 0: enter a number from 1 to 2,147,483,647."),
        ("stop", "a\n" * 5, "Stop texts has 5 lines: enter at most 4."),
        ("stop", "x" * 257, "Stop texts has a line of 257 characters: enter at most 256."),
        ("stop", ["a"], "Stop texts is ['a']: enter a text."),
        ("earlier", "no", "Send earlier messages is 'no': expected true or false."),
        ("system", "x" * 4001, "System prompt has 4,001 characters: enter at most 4,000."),
    ],
)
def test_invalid_value_is_named(name: str, value: Any, message: str) -> None:
    settings, faults = check_settings({**DEFAULTS, name: value})
    assert settings is None
    assert faults == {name: message}


def test_texts_of_stops_have_line_breaks() -> None:
    settings, _ = check_settings({"system": "Grüße", "stop": "\\n\nend"})
    assert settings is not None
    assert (settings.system, settings.sampling.stop) == ("Grüße", ("\n", "end"))


@pytest.mark.parametrize(("sends_earlier", "first"), [(True, 0), (False, 2)])
def test_earlier_messages_are_sent_unless_they_are_switched_off(
    sends_earlier: bool, first: int
) -> None:
    texts = [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2, as f")]
    messages: list[Message] = [{"role": role, "content": text} for role, text in texts]
    settings, _ = check_settings({"earlier": sends_earlier})
    assert settings is not None
    assert settings.select_messages(messages) == messages[first:]
    assert settings.select_messages([]) == []


@pytest.mark.parametrize("sent", [None, "", {}, [1], {"unknown": 1}])
def test_other_values_stand_for_the_defaults(sent: Any) -> None:
    assert check_settings(sent) == check_settings(DEFAULTS)


def test_each_field_has_a_label_a_default_and_its_help() -> None:
    html = render_panel(is_open=False)
    for name, field in FIELDS.items():
        assert f'data-name="{name}"' in html
        assert f">{field.label}</label>" in html
        assert f'data-info="{field.info}"' in unescape(html)
        assert f'data-default="{escape(json.dumps(field.default))}"' in html
    assert len(set(re.findall(r' id="([^"]+)"', html))) == html.count(' id="')
    assert "\\" not in html, "Gradio reads the template as a literal of JavaScript"
    assert " open>" not in html
    assert " open>" in render_panel(is_open=True)
