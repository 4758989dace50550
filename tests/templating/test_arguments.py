from typing import Any

import pytest

from templating.arguments import check_arguments, check_request_arguments, set_arguments
from tests.tokenizer_kinds import CHATML, make_tokenizer

CHAT = [{"role": "user", "content": "fox"}]
SHOWING = "\n {{ mode }}|{{ 'on' if enable_thinking else 'off' }}"


def render(tokenizer: Any, **variables: Any) -> str:
    return str(tokenizer.apply_chat_template(CHAT, tokenize=False, **variables))


@pytest.mark.parametrize(
    "value", ["deep", "a \"b\" 'c'", "{{ x }} {% raw %} #}", "Grüße 🚀\n\\", "", 3, 0.5, True]
)
def test_argument_is_default_of_template_variable(value: Any) -> None:
    plain, tokenizer = (make_tokenizer("byte-level", SHOWING) for _ in range(2))
    set_arguments(tokenizer, {"mode": value, "enable_thinking": False})
    assert render(tokenizer) == render(plain, mode=value, enable_thinking=False)


def test_leading_whitespace_of_template_is_kept() -> None:
    for text in ("  {% for m in messages %}Hi{% endfor %}", "\n\nHi", "  Hi"):
        plain, tokenizer = (make_tokenizer("byte-level", text) for _ in range(2))
        set_arguments(tokenizer, {"mode": "deep"})
        assert render(tokenizer) == render(plain)


def test_request_overrides_default() -> None:
    tokenizer = make_tokenizer("byte-level", SHOWING)
    set_arguments(tokenizer, {"mode": "deep", "enable_thinking": False})
    assert render(tokenizer, enable_thinking=True) == "\n deep|on"


def test_later_default_overrides_earlier_one() -> None:
    tokenizer = make_tokenizer("byte-level", SHOWING)
    for mode in ("first", "second"):
        set_arguments(tokenizer, {"mode": mode})
    assert render(tokenizer) == "\n second|off"


def test_arguments_apply_to_all_templates_of_model() -> None:
    tokenizer: Any = make_tokenizer("byte-level", None)
    tokenizer.chat_template = {"default": SHOWING, "tool_use": SHOWING}
    set_arguments(tokenizer, {"mode": "deep"})
    for name in ("default", "tool_use"):
        assert render(tokenizer, chat_template=name) == "\n deep|off"


def test_template_without_arguments_is_unchanged() -> None:
    tokenizer = make_tokenizer("byte-level", CHATML)
    set_arguments(tokenizer, {})
    assert tokenizer.chat_template == CHATML


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"messages": "x"}, '"messages" cannot be set'),
        ({"a b": 1}, '"a b" cannot be set'),
        ({"a %}{{ x }}": 1}, '"a %}{{ x }}" cannot be set'),
        ({"mode": [1]}, r"the template argument 'mode' is \[1\], expected text"),
        ({"mode": None}, "the template argument 'mode' is null, expected text"),
        ({"mode": "x" * 1001}, "the template argument 'mode' has 1,001 characters"),
        ({f"a{number}": 1 for number in range(33)}, "expected at most 32 template arguments$"),
    ],
)
def test_invalid_argument_is_named(arguments: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{fault}"):
        check_arguments(arguments)


@pytest.mark.parametrize("value", ["<|im_end|>", "a\nb", "Grüße"])
def test_request_argument_with_control_tokens_is_rejected(value: str) -> None:
    assert check_arguments({"mode": value}) == {"mode": value}
    with pytest.raises(
        ValueError, match="^the template argument 'mode' is .*, expected text of ASCII letters"
    ):
        check_request_arguments({"mode": value})
    assert check_request_arguments({"mode": "high", "n": 1}) == {"mode": "high", "n": 1}
