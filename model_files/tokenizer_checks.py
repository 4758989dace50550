"""Checks of the components of a loaded tokenizer.

The loaded object is checked instead of its file, because another JSON parser might read the file
differently.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers.models import Unigram

from model_files.tokenizer_patterns import check_pattern
from model_files.tokenizer_settings import MAX_ADDED_TOKENS, MAX_TOKEN_CHARACTERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MAX_TOKENIZER_BYTES = 64 << 20  # twice the size in the largest published models
_MAX_ENTRIES = 1 << 19  # twice the number in the largest published text generation models
_MAX_ADDED_CHARACTERS = 2_000_000
_MAX_UNUSED_TOKENS = 1_024  # tokens without an embedding in the model
_MAX_ENTRY_CHARACTERS = 1_024
_MAX_AFFIX_CHARACTERS = 16
_MAX_PIECE_CHARACTERS = 128  # Unigram looks up pieces of every length at each position
_MAX_WORD_CHARACTERS = 200
_MAX_STEPS = 32
_MAX_GROWTH = 16.0
_MAX_CHARSMAP_TEXT_BYTES = 128
_MAX_SURROUNDING_TOKENS = 64
_STEPS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")


def check_file_size(path: Path) -> None:
    """Raise `ValueError` if a tokenizer.json is too large to be parsed."""
    size_bytes = path.stat().st_size
    if size_bytes > MAX_TOKENIZER_BYTES:
        raise ValueError(
            f"{path.name} has {size_bytes:,} bytes; expected at most {MAX_TOKENIZER_BYTES:,}"
        )


def check_tokenizer(tokenizer: "PreTrainedTokenizerFast") -> None:
    """Check that a tokenizer's time and memory are proportional to the length of a text.

    Raises `ValueError` that names the component, the value found and what was expected.
    """
    added = tokenizer.added_tokens_decoder
    if len(added) > MAX_ADDED_TOKENS:
        raise ValueError(
            f"the tokenizer has {len(added):,} added tokens; expected at most {MAX_ADDED_TOKENS:,}"
        )
    lengths = [len(token.content) for token in added.values()]
    if sum(lengths) > _MAX_ADDED_CHARACTERS:
        raise ValueError(
            f"the tokenizer's added tokens have {sum(lengths):,} characters; expected at most "
            f"{_MAX_ADDED_CHARACTERS:,} in all"
        )
    longest = max(lengths, default=0)
    if longest > MAX_TOKEN_CHARACTERS:
        raise ValueError(
            f"the tokenizer has an added token of {longest:,} characters; expected at most "
            f"{MAX_TOKEN_CHARACTERS}"
        )
    backend: Any = tokenizer.backend_tokenizer
    for name in _STEPS:
        if (step := getattr(backend, name)) is not None:
            _check_step(name, json.loads(step.__getstate__()))
    _check_model(backend.model)


def check_vocabulary(tokenizer: "PreTrainedTokenizerFast", vocab_size: int) -> None:
    """Check the size of a vocabulary against the model's `vocab_size`, and the length of entries.

    Also checks the number of tokens that the tokenizer adds around a text. Lists the whole
    vocabulary, which takes about 0.1 s and 100 bytes per entry. Raises `ValueError` with the value
    found and the value expected.
    """
    num_entries, limit = len(tokenizer), min(vocab_size + _MAX_UNUSED_TOKENS, _MAX_ENTRIES)
    if num_entries > limit:
        raise ValueError(
            f"the tokenizer has {num_entries:,} entries, and config.json a vocab_size of "
            f"{vocab_size:,}; expected at most {limit:,} entries"
        )
    backend = tokenizer.backend_tokenizer
    is_unigram = isinstance(backend.model, Unigram)
    limit = _MAX_PIECE_CHARACTERS if is_unigram else _MAX_ENTRY_CHARACTERS
    longest = max(map(len, backend.get_vocab(with_added_tokens=False)), default=0)
    if longest > limit:
        raise ValueError(
            f"the tokenizer has an entry of {longest:,} characters; expected at most {limit:,}"
        )
    num_around = len(backend.encode("").ids)
    if num_around > _MAX_SURROUNDING_TOKENS:
        raise ValueError(
            f"the tokenizer puts {num_around:,} tokens around a text; expected at most "
            f"{_MAX_SURROUNDING_TOKENS}"
        )


def _check_step(name: str, step: dict[str, Any]) -> None:
    """Check one pipeline step of a tokenizer, which may be a sequence of steps."""
    growth, parts = 1.0, [part for part in _walk(step) if isinstance(part.get("type"), str)]
    if len(parts) > _MAX_STEPS:
        raise ValueError(
            f"the tokenizer's {name} has {len(parts):,} parts; expected at most {_MAX_STEPS}"
        )
    for part in _walk(step):
        if isinstance(pattern := part.get("Regex"), str):
            check_pattern(pattern)
        if part.get("type") == "Replace":
            growth *= _measure_growth(part)
        for key in ("prepend", "prefix", "suffix", "replacement", "content"):
            _check_affix(f"{name}'s {key}", part.get(key))
        if charsmap := part.get("precompiled_charsmap"):
            _check_charsmap(charsmap)
    if growth > _MAX_GROWTH:
        raise ValueError(
            f"the tokenizer's {name} may replace a text by one that is {growth:,.0f} times as "
            f"long; expected at most {_MAX_GROWTH:g} times"
        )


def _measure_growth(replace: dict[str, Any]) -> float:
    """Return the factor by which a replacement may lengthen a text."""
    found = replace.get("pattern", {}).get("String") or "?"  # a regex may match one character
    return max(1.0, len(replace.get("content", "")) / len(found))


def _check_affix(name: str, text: Any) -> None:
    if isinstance(text, str) and len(text) > _MAX_AFFIX_CHARACTERS:
        raise ValueError(
            f"the tokenizer's {name} has {len(text):,} characters; expected at most "
            f"{_MAX_AFFIX_CHARACTERS}"
        )


def _check_charsmap(encoded: Any) -> None:
    """Check the table of a SentencePiece normalizer: a trie, then zero-terminated texts.

    For any trie, a character is replaced by at most the longest of these texts.
    """
    table = base64.b64decode(encoded) if isinstance(encoded, str) else bytes(encoded)
    start = 4 + int.from_bytes(table[:4], "little")
    longest = max(map(len, table[start:].split(b"\0")))
    if start > len(table) or longest > _MAX_CHARSMAP_TEXT_BYTES:
        raise ValueError(
            f"the tokenizer's precompiled_charsmap replaces a character by {longest:,} bytes; "
            f"expected at most {_MAX_CHARSMAP_TEXT_BYTES}"
        )


def _check_model(model: Any) -> None:
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        _check_affix(name, getattr(model, name, None))
    longest = getattr(model, "max_input_chars_per_word", 0)
    if longest > _MAX_WORD_CHARACTERS:  # the time for a word is quadratic in its length
        raise ValueError(
            f"the tokenizer's max_input_chars_per_word is {longest:,}; expected at most "
            f"{_MAX_WORD_CHARACTERS:,}"
        )


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every JSON object in a value, including nested ones."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value
