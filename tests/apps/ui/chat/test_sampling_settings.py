"""Settings of answers, as a browser sends them and keeps them."""

import json
from typing import Any

import pytest

from apps.client.text import Sampling
from apps.ui.chat.sampling_settings import (
    FIELDS,
    AnswerSettings,
    check_settings,
    pack_settings,
    unpack_settings,
)

DEFAULTS = [field.default for field in FIELDS.values()]


def list_values(**changes: Any) -> list[Any]:
    return list((dict(zip(FIELDS, DEFAULTS, strict=True)) | changes).values())


def test_defaults_are_valid() -> None:
    settings, faults = check_settings(DEFAULTS)
    assert faults == {}
    assert settings == AnswerSettings("", Sampling(0, 128, 1, None, None))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 2.5, "Temperature is 2.5: enter a number from 0 to 2."),
        ("temperature", None, "Temperature is empty: enter a number."),
        ("temperature", float("nan"), "Temperature is nan: enter a number."),
        ("temperature", True, "Temperature is True: enter a number."),
        ("top_p", -1, "Top-p is -1: enter a number from 0 to 1."),
        ("seed", 1.5, "Seed is 1.5: enter a whole number."),
        ("max_tokens", 0, "Maximum number of tokens is 0: enter a number from 1 to 2.14748e+09."),
        ("stop", "a\n" * 5, "Stop texts has 5 lines: enter at most 4."),
        ("stop", "x" * 257, "Stop texts has a line of 257 characters: enter at most 256."),
        ("stop", ["a"], "Stop texts is ['a']: enter a text."),
        ("system", "x" * 4001, "System prompt has 4,001 characters: enter at most 4,000."),
    ],
)
def test_invalid_value_is_named(name: str, value: Any, message: str) -> None:
    settings, faults = check_settings(list_values(**{name: value}))
    assert settings is None
    assert faults == {name: message}


def test_settings_are_restored() -> None:
    values = list_values(system="Grüße", temperature=0.7, seed=3, stop="\\n\nend")
    assert unpack_settings(pack_settings(values)) == values
    settings, _ = check_settings(values)
    assert settings is not None
    assert settings.sampling.stop == ("\n", "end")


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "3", '{"temperature": 9, "stop": [1]}', "[" * 10_000, 7]
)
def test_invalid_kept_settings_are_the_defaults(text: Any) -> None:
    assert unpack_settings(text) == DEFAULTS


def test_unknown_kept_setting_is_ignored() -> None:
    assert unpack_settings(json.dumps({"new": 1, "top_p": 0.5})) == list_values(top_p=0.5)
