"""Tokenisation of a prompt in training exactly as in serving, whatever follows the prompt.

A tokenizer may join the last characters of a prompt with the first of an answer: `assistant: ` and
`Paris` become ` Paris`, a token that a model cannot write after a prompt that ends in a space.
Serving tokenises the prompt separately, so training does the same.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from templating.literal_text import LiteralText
from templating.renderer import Span
from templating.text_pieces import PLACEHOLDER, EncodedText, IntArray, restore_literals

_MAX_CACHED = 1024
# Texts before an answer, after which its first token is one for the middle of a text.
_CONTEXTS = ("\n", "a", ".", "")
_NUM_READ = 16  # tokens


class Tokenized(NamedTuple):
    """A text as tokens; `spans` has the shape [tokens, 2]: the first and end character of each."""

    ids: IntArray
    spans: IntArray

    @classmethod
    def of(cls, encoded: EncodedText) -> "Tokenized":
        """Build it from a tokenizer's result."""
        return cls(
            np.array(encoded.ids, dtype=np.int64),
            np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2),
        )


class PromptBoundaries:
    """Compares and enforces the tokens of prompts, for the texts of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, literal_text: LiteralText) -> None:
        self._tokenizer = tokenizer
        self._literal_text = literal_text
        self._added = np.array(sorted(tokenizer.added_tokens_decoder), dtype=np.int64)
        self._cache: dict[tuple[str, str], IntArray] = {}

    def matches_serving(
        self,
        text: str,
        literals: Mapping[str, str],
        template: str,
        tokens: Tokenized,
        prompt_end: int,
    ) -> bool:
        """Return whether a text's tokens begin with those of its first `prompt_end` characters.

        No token reaches beyond an added token, so only what follows the last one is compared.
        """
        num_tokens = int(np.searchsorted(tokens.spans[:, 0], prompt_end))
        begin, end = tokens.spans[:num_tokens].T
        if num_tokens and int(end.max()) > prompt_end:
            return False
        added = np.flatnonzero(np.isin(tokens.ids[:num_tokens], self._added) & (end > begin))
        first = int(added[-1]) if len(added) else 0
        start = int(begin[first]) if len(added) else 0
        expected = self._encode(text[start:prompt_end], literals, template)
        return np.array_equal(tokens.ids[first:num_tokens], expected)

    def split(
        self,
        text: str,
        literals: Mapping[str, str],
        template: str,
        tokens: Tokenized,
        prompt_end: int,
    ) -> Tokenized:
        """Return the tokens of a prompt as in serving, followed by the tokens of the rest."""
        prompt = self._encode(text[:prompt_end], literals, template)
        joint = prompt_end  # the end of the tokens that include characters of the prompt
        while (grown := self._find_token_end(tokens, joint)) > joint:
            joint = grown
        gap = self._encode_rest(text, literals, template, prompt, (prompt_end, joint))
        num_before = int(np.searchsorted(tokens.spans[:, 0], joint))
        ids = np.concatenate((prompt, gap, tokens.ids[num_before:]))
        inside = np.zeros((len(prompt), 2), dtype=np.int64)
        between = np.tile(np.array([[prompt_end, joint]], dtype=np.int64), (len(gap), 1))
        return Tokenized(ids, np.concatenate((inside, between, tokens.spans[num_before:])))

    def _find_token_end(self, tokens: Tokenized, place: int) -> int:
        """Return the largest end of the tokens that begin before `place`."""
        num_tokens = int(np.searchsorted(tokens.spans[:, 0], place))
        return max(place, int(tokens.spans[:num_tokens, 1].max(initial=0)))

    def _encode_rest(
        self, text: str, literals: Mapping[str, str], template: str, prompt: IntArray, span: Span
    ) -> IntArray:
        """Tokenise characters so that they decode to themselves after the tokens of a prompt.

        Several contexts are tried before the characters. If none works, as with a tokenizer that
        drops characters, the first context whose own tokens do not change is used.
        """
        part = text[slice(*span)]
        if not part:
            return np.zeros(0, dtype=np.int64)
        shown = restore_literals(part, literals)
        fallback: IntArray | None = None
        for context in _CONTEXTS:
            before = self._encode(context, {}, template)
            both = self._encode(context + part, literals, template)
            rest = both[len(before) :]
            if not np.array_equal(both[: len(before)], before):
                continue
            if self._reads(prompt[-_NUM_READ:], rest, shown):
                return rest
            fallback = rest if fallback is None else fallback
        assert fallback is not None  # the tokens of an empty context never change
        return fallback

    def _reads(self, before: IntArray, rest: IntArray, text: str) -> bool:
        """Return whether tokens decode to exactly `text` after the tokens before them."""
        decode = self._tokenizer.decode
        written = str(decode([*before.tolist(), *rest.tolist()]))
        return written == str(decode(before.tolist())) + text

    def _encode(self, text: str, literals: Mapping[str, str], template: str) -> IntArray:
        key = text, template
        if key in self._cache:
            return self._cache[key]
        has_literals = PLACEHOLDER.search(text) is not None
        (encoded,) = self._literal_text.encode([text], [literals if has_literals else {}], template)
        ids = np.array(encoded.ids, dtype=np.int64)
        if not has_literals and len(self._cache) < _MAX_CACHED and len(text) < _MAX_CACHED:
            self._cache[key] = ids
        return ids
