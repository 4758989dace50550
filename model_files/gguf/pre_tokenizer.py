"""llama.cpp's name for the pre-tokenizer of a byte-level BPE tokenizer."""

from collections.abc import Mapping
from typing import Any

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
_NEWLINES = {
    "type": "Split",
    "pattern": {"Regex": "\n"},
    "behavior": "Isolated",
    "invert": False,
}
_NEWLINE = "\u010a"  # represents the byte of "\n" in a byte-level vocabulary

# The steps of tokenizer.json, and the name under which src/llama-vocab.cpp has the same regular
# expressions in the same order: GPT-2's, and single digits before GPT-2's.
_KNOWN = (([_BYTE_LEVEL], "gpt-2"), ([_DIGITS, _BYTE_LEVEL], "smollm"))


def name_pre_tokenizer(settings: Mapping[str, Any]) -> str | None:
    """Return the name for the content of a tokenizer.json; None if llama.cpp has no equal one.

    A first step that splits at newlines is ignored where no token has a newline and anything else:
    the tokens are the same without it.
    """
    model, step = settings.get("model") or {}, settings.get("pre_tokenizer") or {}
    if model.get("type") != "BPE" or settings.get("normalizer") or model.get("ignore_merges"):
        return None
    steps = [_strip(one) for one in step.get("pretokenizers", [step])]
    if steps[:1] == [_NEWLINES] and not any(
        _NEWLINE in token and token != _NEWLINE for token in model.get("vocab", {})
    ):
        steps = steps[1:]
    return next((name for known, name in _KNOWN if steps == known), None)


def _strip(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step without the setting that changes offsets only."""
    return {key: value for key, value in step.items() if key != "trim_offsets"}
