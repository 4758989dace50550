"""Variables of a chat template that a user sets, such as `enable_thinking`."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from templating.renderer import TemplateValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# Variables that every template has already, and keywords of Jinja.
_RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token"),
        *("mask_token", "chat_template", "conversations", "return_assistant_tokens_mask"),
        *("raise_exception", "strftime_now", "loop", "self", "true", "false", "none", "True"),
        *("False", "None", "not", "and", "or", "in", "is", "if", "else", "set", "for"),
    }
)
MAX_ARGUMENTS, MAX_ARGUMENT_CHARACTERS = 32, 1000
# Excludes the characters that mark control tokens, such as `<` and `|`.
_WORDS = re.compile(r"[A-Za-z0-9 _.,:-]*")


def check_arguments(arguments: Any) -> Any:
    """Return arguments unchanged; raise `ValueError` that names an argument that is not valid."""
    if not isinstance(arguments, Mapping):
        return arguments  # the caller checks the type
    if len(arguments) > MAX_ARGUMENTS:
        raise ValueError(f"expected at most {MAX_ARGUMENTS} template arguments")
    for name, value in arguments.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
            raise ValueError(
                f"{json.dumps(name, default=str)[:80]} cannot be set as a template argument; "
                "expected a name such as 'enable_thinking'"
            )
        if not isinstance(value, str | int | float | bool):
            raise ValueError(
                f"the template argument {name!r} is {json.dumps(value, default=str)[:80]}, "
                "expected text, a number, true or false"
            )
        if isinstance(value, str) and len(value) > MAX_ARGUMENT_CHARACTERS:
            raise ValueError(
                f"the template argument {name!r} has {len(value):,} characters, expected at most "
                f"{MAX_ARGUMENT_CHARACTERS:,}"
            )
    return arguments


def check_request_arguments(arguments: Any) -> Any:
    """Check arguments as `check_arguments` does, and that their texts cannot be control tokens."""
    for name, value in check_arguments(arguments).items() if isinstance(arguments, Mapping) else ():
        if isinstance(value, str) and not _WORDS.fullmatch(value):
            raise ValueError(
                f"the template argument {name!r} is {json.dumps(value)[:80]}, expected text of "
                "ASCII letters, digits, spaces and _ . , : -"
            )
    return arguments


def set_arguments(
    tokenizer: "PreTrainedTokenizerBase", arguments: Mapping[str, TemplateValue]
) -> None:
    """Set arguments as defaults in a tokenizer's chat templates; requests may override them.

    They become part of the template text, so that every server of the model applies them.
    """
    if not arguments or not tokenizer.chat_template:
        return
    head = "".join(
        f"{{%- set {name} = {name} if {name} is defined else {_write_value(value)} %}}"
        for name, value in sorted(arguments.items())
    )
    head += "\n"  # transformers' Jinja drops one line end after a tag
    own: Any = tokenizer.chat_template
    tokenizer.chat_template = (
        {name: head + text for name, text in own.items()} if isinstance(own, dict) else head + own
    )


def _write_value(value: TemplateValue) -> str:
    """Format a value as a Jinja literal; text is escaped so that it cannot end the tag."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return re.sub(r"[{}%#]", lambda found: f"\\x{ord(found.group()):02x}", text)
    return json.dumps(value)
