"""Encoding of message content as literal text, which never yields a model's control tokens.

Control tokens in the client's strings are replaced by placeholder characters before the template is
rendered, so that every control token in the rendered text comes from the template. Then the
original text is restored and tokenized without matching added tokens in it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tokenizers import NormalizedString, PreTokenizedString, Regex

from model_files.tokenizer_faults import translate_faults
from templating.control_tokens import Control, ControlTokens, Normalize
from templating.errors import TemplateRefusedError
from templating.patterns import match_first_characters
from templating.text_pieces import (
    PLACEHOLDER,
    PLACEHOLDERS,
    EncodedText,
    Piece,
    Tokens,
    cut_text,
    merge_controls,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Split = Callable[[int, NormalizedString], list[NormalizedString]]


class ProtectedChat(NamedTuple):
    """A conversation to render; `literals` maps its placeholders to the original texts."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    literals: Mapping[str, str]


class LiteralText:
    """Encodes text for one tokenizer so that strings of a client yield no control tokens.

    Control tokens are the special tokens, tokens of the form `<|…|>`, and other added tokens that
    the template writes, such as `<tool_response>`. The last kind is not replaced in the assistant's
    content: models generate tokens such as `<think>`, and clients send their output back.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._control_tokens = ControlTokens(tokenizer)
        self._added = self._control_tokens.added

    def prepare(self, templates: Iterable[str]) -> None:
        """Find the control tokens of templates now instead of at the first text of each template.

        Raises `TokenizerFaultError` if the tokenizer fails.
        """
        with translate_faults():
            for template in templates:
                self._control_tokens.find(template)

    def protect_chat(
        self, messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] | None, template: str
    ) -> ProtectedChat:
        """Replace control tokens in all strings of a conversation except the roles.

        Message keys whose value is None are dropped, as in `apply_chat_template`. Raises
        `TemplateRefusedError` for messages with too many different control tokens or characters,
        and `TokenizerFaultError` if the tokenizer fails on them.
        """
        with translate_faults():
            return self._protect_chat(messages, tools, template)

    def _protect_chat(
        self, messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] | None, template: str
    ) -> ProtectedChat:
        chat = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        tools = list(tools) if tools else None
        control = self._control_tokens.find(template)
        normalize = self._control_tokens.find_normalizer()
        if not any(control.affects(text, normalize) for text in _list_strings([chat, tools])):
            return ProtectedChat(chat, tools, {})
        swap = _Swap(control, normalize, [*_list_strings([chat, tools]), template])
        protected = [
            {
                key: value if key == "role" else swap.replace(value, _choose(control, message, key))
                for key, value in message.items()
            }
            for message in chat
        ]
        return ProtectedChat(protected, swap.replace(tools, control.anywhere), swap.literals)

    def protect_text(self, text: str) -> tuple[str, Mapping[str, str]]:
        """Replace special tokens in a text that is used without a template.

        Raises the errors of `protect_chat`.
        """
        with translate_faults():
            control = self._control_tokens.find("")
            normalize = self._control_tokens.find_normalizer()
            if not control.affects(text, normalize):
                return text, {}
            swap = _Swap(control, normalize, [text])
            return swap.replace(text, control.anywhere), swap.literals

    def encode(
        self,
        texts: Sequence[str],
        literals: Sequence[Mapping[str, str]],
        template: str = "",
        *,
        add_special_tokens: bool = False,
    ) -> list[EncodedText]:
        """Tokenize texts; those without placeholders exactly as the tokenizer does.

        `literals` maps the placeholders of each text to the original texts. Raises
        `TemplateRefusedError` if the tokenizer cannot encode one of them as text, and
        `TokenizerFaultError` if it fails on a text.
        """
        with translate_faults():
            return self._encode(texts, literals, template, add_special_tokens=add_special_tokens)

    def _encode(
        self,
        texts: Sequence[str],
        literals: Sequence[Mapping[str, str]],
        template: str,
        *,
        add_special_tokens: bool,
    ) -> list[EncodedText]:
        has_literal = [
            bool(_list_placeholders(*pair)) for pair in zip(texts, literals, strict=True)
        ]
        if any(has_literal) and not self._tokenizer.is_fast:
            raise TemplateRefusedError(
                "a message contains one of the model's control tokens, which its tokenizer cannot "
                "encode as text"
            )
        encoded: Any = self._tokenizer(
            list(texts),
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
            return_offsets_mapping=self._tokenizer.is_fast,
            return_special_tokens_mask=add_special_tokens,
        )
        offsets = encoded["offset_mapping"] if self._tokenizer.is_fast else encoded["input_ids"]
        found = [EncodedText(*pair) for pair in zip(encoded["input_ids"], offsets, strict=True)]
        for index, text in enumerate(texts):
            if has_literal[index] or self._has_normalized_control(text, found[index], template):
                mask = encoded["special_tokens_mask"][index] if add_special_tokens else ()
                found[index] = self._encode_affected(
                    text, literals[index], template, found[index], mask
                )
        return found

    def _encode_affected(
        self,
        text: str,
        literals: Mapping[str, str],
        template: str,
        plain: EncodedText,
        added_around: Sequence[int],
    ) -> EncodedText:
        """Tokenize a text with placeholders; `plain` has the positions of its control tokens."""
        control = self._control_tokens.find(template)
        unknown = self._tokenizer.unk_token_id
        spans = [
            (start, end, token)
            for token, (start, end) in zip(plain.ids, plain.offsets, strict=True)
            if token in self._added
            and end > start
            and self._is_written(text[start:end], token, template)
            # Unknown characters get the id of the unknown token, as a literal unknown token does.
            and (token != unknown or text[start:end].strip() == self._tokenizer.unk_token)
        ]
        pieces = cut_text(text, spans, literals)
        tokens = self._run_pipeline(text, pieces, literals, control, is_split=False)
        if self._has_forged(tokens, pieces, control):
            tokens = self._run_pipeline(text, pieces, literals, control, is_split=True)
            if self._has_forged(tokens, pieces, control):
                raise TemplateRefusedError(
                    "a message contains one of the model's control tokens, which its tokenizer "
                    "cannot encode as text"
                )
        found = tokens.to_encoded()
        if not any(added_around):
            return found
        # Tokens that the tokenizer adds before and after a text, such as the BOS token.
        num_before = list(added_around).index(0) if 0 in added_around else len(added_around)
        num_after = list(reversed(added_around)).index(0) if 0 in added_around else 0
        after = slice(len(plain.ids) - num_after, len(plain.ids))
        return EncodedText(
            plain.ids[:num_before] + found.ids + plain.ids[after],
            plain.offsets[:num_before] + found.offsets + plain.offsets[after],
        )

    def _run_pipeline(
        self,
        text: str,
        pieces: Sequence[Piece],
        literals: Mapping[str, str],
        control: Control,
        *,
        is_split: bool,
    ) -> Tokens:
        """Normalize, split and tokenize as the tokenizer does between added tokens.

        A separator character replaces each control token: one for tokens that the tokenizer matches
        before normalization and one for tokens that it matches after. `is_split` breaks control
        tokens in the text, for models whose vocabulary contains them as ordinary words.
        """
        unused = _list_unused([text, *literals.values()])
        if len(unused) < 2:
            raise TemplateRefusedError("the messages contain too many different characters")
        raw, after = unused[:2]
        separators = {
            piece.control_id: after if self._added[piece.control_id].normalized else raw
            for piece in pieces
            if piece.control_id is not None
        }
        parts = [
            piece.text if piece.control_id is None else separators[piece.control_id]
            for piece in pieces
        ]
        starts = [0, *accumulate(map(len, parts))][: len(parts)]
        backend = self._tokenizer.backend_tokenizer
        tokens = PreTokenizedString("".join(parts))
        tokens.split(_split_at(raw))
        if (normalizer := backend.normalizer) is not None:
            tokens.normalize(normalizer.normalize)
        tokens.split(_split_at(after))
        if (pre_tokenizer := backend.pre_tokenizer) is not None:
            pre_tokenizer.pre_tokenize(tokens)
        if is_split:
            tokens.split(_break_words(control.anywhere))
        tokens.tokenize(backend.model.tokenize)
        encoding = tokens.to_encoding()
        return merge_controls(pieces, starts, encoding.ids, encoding.offsets)

    def _has_normalized_control(self, text: str, plain: EncodedText, template: str) -> bool:
        """Return whether the tokenizer made a control token of text that does not spell it.

        A normalizer can do so, for example with full-width characters, even with those of two
        messages that a template joins, if the token is an ordinary word of the model's vocabulary.
        """
        if not self._tokenizer.is_fast or self._tokenizer.backend_tokenizer.normalizer is None:
            return False
        control_ids, unknown = self._control_tokens.find(template).ids, self._tokenizer.unk_token_id
        return any(
            token in control_ids
            and token != unknown
            and end > start
            and not self._is_written(text[start:end], token, template)
            for token, (start, end) in zip(plain.ids, plain.offsets, strict=True)
        )

    def _is_written(self, written: str, token: int, template: str) -> bool:
        """Return whether characters spell an added token, or occur in the template."""
        written = written.strip()
        return written == str(self._added[token].content).strip() or written in template

    def _has_forged(self, tokens: Tokens, pieces: Sequence[Piece], control: Control) -> bool:
        own = {(piece.start, piece.end) for piece in pieces if piece.control_id is not None}
        forbidden = sorted(control.ids - {self._tokenizer.unk_token_id})
        spans = tokens.spans[np.isin(tokens.ids, forbidden)].tolist()
        return any((start, end) not in own for start, end in spans)


class _Swap:
    """Replaces strings by placeholders, which are the keys of `literals`."""

    def __init__(self, control: Control, normalize: Normalize | None, texts: Iterable[str]) -> None:
        self.literals: dict[str, str] = {}
        self._control = control
        self._normalize = normalize
        self._free = iter(_list_unused(texts))
        self._placeholders: dict[str, str] = {}

    def replace(self, value: Any, pattern: re.Pattern[str]) -> Any:
        """Return a JSON-like value with control tokens replaced in all its strings."""
        if isinstance(value, str):
            return self._replace_text(value, pattern)
        if isinstance(value, Mapping):
            return {
                self.replace(key, pattern): self.replace(item, pattern)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.replace(item, pattern) for item in value]
        return value

    def _replace_text(self, text: str, pattern: re.Pattern[str]) -> str:
        swapped = pattern.sub(lambda match: self._assign_placeholder(match.group()), text)
        if (start := self._control.find_open_end(swapped)) is not None:
            placeholder = self._assign_placeholder(swapped[start])
            swapped = f"{swapped[:start]}{placeholder}{swapped[start + 1 :]}"
        if self._normalize and self._control.normalized.search(self._normalize(swapped)):
            return self._assign_placeholder(text)
        return swapped

    def _assign_placeholder(self, text: str) -> str:
        if text not in self._placeholders:
            placeholder = next(self._free, None)
            if placeholder is None:
                raise TemplateRefusedError("the messages contain too many different control tokens")
            self._placeholders[text] = placeholder
            self.literals[placeholder] = text
        return self._placeholders[text]


def _choose(control: Control, message: Mapping[str, Any], key: str) -> re.Pattern[str]:
    is_answer = key == "content" and message.get("role") == "assistant"
    return control.in_answers if is_answer else control.anywhere


def _list_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _list_strings(key)
            yield from _list_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_strings(item)


def _list_unused(texts: Iterable[str]) -> list[str]:
    """List the placeholders that occur in none of the texts."""
    used = {character for text in texts for character in PLACEHOLDER.findall(text)}
    return [character for character in PLACEHOLDERS if character not in used]


def _list_placeholders(text: str, literals: Mapping[str, str]) -> list[str]:
    return [placeholder for placeholder in literals if placeholder in text]


def _split_at(pattern: str | Regex) -> Split:
    def split(_: int, text: NormalizedString) -> list[NormalizedString]:
        return text.split(pattern, "isolated")

    return split


def _break_words(words: re.Pattern[str]) -> Split:
    """Return a split before and after the first character of each match of `words` in a text."""

    def split(_: int, text: NormalizedString) -> list[NormalizedString]:
        content, found, place = text.normalized, set(), 0
        while match := words.search(content, place):
            found.add(match.group())
            place = match.start() + 1  # matches may overlap
        return text.split(Regex(match_first_characters(found)), "isolated") if found else [text]

    return split
