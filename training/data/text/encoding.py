"""Encoding of rows as tokens, with a mask of the tokens that are learned.

The model's own chat template renders rows here and chats in serving, so that their tokens are
identical. Rows are tokenised in batches; each row gets exactly the tokens that it would get alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from model_files.end_ids import list_end_ids
from model_files.tokenizer_faults import translate_faults
from templating.errors import TemplateRefusedError
from templating.literal_text import LiteralText
from templating.renderer import RenderLimits, Span
from templating.text_pieces import EncodedText, IntArray
from training.data.chat.learned_spans import LearnedTurn
from training.data.chat.prompt_tokens import PromptBoundaries, Tokenized
from training.data.chat.rendering import (
    ChatSettings,
    FaultyRow,
    Group,
    PlannedRow,
    RenderedSample,
    RowRenderer,
)
from training.data.faults import RowFault
from training.data.text.formats import Row

# Limit of the total characters of the prompts of one text, as in the render process.
_SPLIT_CHARACTERS, _SPLIT_PER_CHARACTER = 1_000_000, 8

TokenIds = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TokenSample:
    """One sample of a row as tokens; `learned[i]`: the loss counts the prediction of token `i`.

    Both arrays have the shape `[length]`. A chat whose template rewrites earlier turns becomes
    several samples, each with one answer after its own prompt; then `is_part` is true. `number` is
    the number of the row, which its samples share.
    """

    line: int
    input_ids: TokenIds
    learned: Mask
    truncated_tokens: int = 0
    is_part: bool = False
    number: int = 0

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.input_ids)

    @property
    def num_targets(self) -> int:
        """Tokens that the loss counts; the first token of a row is never predicted."""
        return int(self.learned[1:].sum())

    @property
    def size_bytes(self) -> int:
        """Its size in a table."""
        return self.input_ids.nbytes + self.learned.nbytes

    def renumber(self, number: int) -> "TokenSample":
        """Return a copy with the number of its row."""
        return replace(self, number=number)

    def truncate(self, max_length: int) -> "TokenSample":
        """Truncate to the first `max_length` tokens, and count the removed tokens."""
        num_cut = max(0, len(self.input_ids) - max_length)
        ids, learned = self.input_ids[:max_length], self.learned[:max_length]
        return replace(self, input_ids=ids, learned=learned, truncated_tokens=num_cut)


class RowEncoder:
    """Tokenises the rows of one source; a separate process renders the templates.

    While this process tokenises a batch, the other one renders the next. Must be closed.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        settings: ChatSettings | None = None,
        limits: RenderLimits | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._literal_text = LiteralText(tokenizer)
        settings = settings or ChatSettings(end_ids=list_end_ids(None, tokenizer))
        self._renderer = RowRenderer(
            tokenizer, self._literal_text, settings, limits or RenderLimits()
        )
        self._boundaries = PromptBoundaries(tokenizer, self._literal_text)

    def __enter__(self) -> "RowEncoder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the render process."""
        self._renderer.close()

    def encode(
        self, batches: Iterable[Sequence[Row]]
    ) -> Iterator[tuple[Row, TokenSample | RowFault]]:
        """Tokenise rows without truncation; the assistant's tokens are learned, or all of a text.

        The rows of a batch have one format. Yields each row with each of its samples, or with a
        `RowFault` if the template refuses it or does not render all of it. Raises
        `TemplateStoppedError` for a template that exceeds its limits, and `OSError` if the render
        process ended for another reason.
        """
        ahead: list[PlannedRow | FaultyRow] = []
        for rows in batches:
            if rows and (rows[0].text is not None or not self._renderer.has_template):
                yield from zip(rows, self._encode_plain(rows), strict=True)
                continue
            planned = [self._renderer.plan(row) for row in rows]
            last: Group = []
            for group in self._renderer.receive(ahead):
                yield from self._finish(last)
                last = group
            self._renderer.send(planned)
            yield from self._finish(last)
            ahead = planned
        for group in self._renderer.receive(ahead):
            yield from self._finish(group)

    def _finish(self, group: Group) -> Iterator[tuple[Row, TokenSample | RowFault]]:
        encoded = iter(self._tokenize([one for one in group if isinstance(one, RenderedSample)]))
        for one in group:
            if isinstance(one, FaultyRow):
                yield one.row, one.fault
            else:
                yield from ((one.row, row) for row in next(encoded))

    def _tokenize(
        self, samples: Sequence[RenderedSample]
    ) -> Iterator[list[TokenSample | RowFault]]:
        texts = self._encode_texts(
            [one.sample.text for one in samples],
            [one.literals for one in samples],
            [one.template for one in samples],
        )
        for one, text in zip(samples, texts, strict=True):
            if isinstance(text, RowFault):
                yield [text]
                continue
            try:
                yield list(self._finish_sample(one, Tokenized.of(text)))
            except RowFault as fault:
                yield [fault]
            except TemplateRefusedError as exc:
                yield [_describe_literal(exc)]

    def _finish_sample(self, one: RenderedSample, tokens: Tokenized) -> Iterator[TokenSample]:
        """Mark the learned tokens; separate answers whose prompts have other tokens in serving.

        `tokens` are the tokens of the whole text. Raises `RowFault` or `TemplateRefusedError` for
        prompts that cannot be encoded.
        """
        text, literals, template = one.sample.text, one.literals, one.template
        turns = one.sample.turns
        shared, apart = self._sort_turns(one, tokens)
        for turn in apart:
            num_tokens = int(np.searchsorted(tokens.spans[:, 0], turn.end))
            head = Tokenized(tokens.ids[:num_tokens], tokens.spans[:num_tokens])
            own = self._boundaries.split(text, literals, template, head, turn.start)
            yield _mark_turns(one, own, [turn], is_part=one.is_part or len(turns) > 1)
        if shared:
            yield _mark_turns(one, tokens, shared, is_part=one.is_part or shared != turns)

    def _sort_turns(
        self, one: RenderedSample, tokens: Tokenized
    ) -> tuple[list[LearnedTurn], list[LearnedTurn]]:
        """Separate the answers whose prompts are tokenised as in serving from the others.

        Raises `RowFault` if the prompts of the others have too many characters in total.
        """
        text, literals, template = one.sample.text, one.literals, one.template
        sorted_turns: tuple[list[LearnedTurn], list[LearnedTurn]] = [], []
        for turn in one.sample.turns:
            matches = self._boundaries.matches_serving(text, literals, template, tokens, turn.start)
            sorted_turns[0 if matches else 1].append(turn)
        num_characters = sum(turn.end for turn in sorted_turns[1])
        most = _SPLIT_CHARACTERS + _SPLIT_PER_CHARACTER * len(text)
        if num_characters > most:
            raise RowFault(
                "each of its answers is learned after a prompt of its own, since the prompts end "
                "with characters that the tokenizer joins with answers, and these have {:,} "
                "characters together, expected at most {:,}; set learned_turns to 'last', or split "
                "the chat",
                num_characters,
                most,
            )
        return sorted_turns

    def _encode_texts(
        self,
        texts: Sequence[str],
        literals: Sequence[Mapping[str, str]],
        templates: Sequence[str],
        *,
        add_special_tokens: bool = False,
    ) -> list[EncodedText | RowFault]:
        """Tokenise texts; those with literals one by one, so that a refusal affects only one."""
        plain = [index for index, found in enumerate(literals) if not found]
        encoded: dict[int, EncodedText | RowFault] = {}
        if plain:
            found = self._literal_text.encode(
                [texts[index] for index in plain],
                [{} for _ in plain],
                add_special_tokens=add_special_tokens,
            )
            encoded.update(zip(plain, found, strict=True))
        for index in set(range(len(texts))).difference(plain):
            try:
                (encoded[index],) = self._literal_text.encode(
                    [texts[index]],
                    [literals[index]],
                    templates[index],
                    add_special_tokens=add_special_tokens,
                )
            except TemplateRefusedError as exc:
                encoded[index] = _describe_literal(exc)
        return [encoded[index] for index in range(len(texts))]

    def _encode_plain(self, rows: Sequence[Row]) -> list[TokenSample | RowFault]:
        if rows[0].text is not None:
            return _encode_raw_texts(rows, self._tokenizer)
        return self._encode_without_template(rows)

    def _encode_without_template(self, rows: Sequence[Row]) -> list[TokenSample | RowFault]:
        """Concatenate prompts and completions unchanged, for a base model without a template."""
        prompts = self._encode_contents(rows, 0)
        answers = self._encode_contents(rows, 1)
        eos = self._tokenizer.eos_token_id
        ends = [] if eos is None else [eos]
        encoded: list[TokenSample | RowFault] = []
        for row, prompt, answer in zip(rows, prompts, answers, strict=True):
            if isinstance(prompt, RowFault):
                encoded.append(prompt)
            elif isinstance(answer, RowFault):
                encoded.append(answer)
            else:
                ids = np.array([*prompt.ids, *answer.ids, *ends], dtype=np.int32)
                encoded.append(TokenSample(row.line, ids, np.arange(len(ids)) >= len(prompt.ids)))
        return encoded

    def _encode_contents(self, rows: Sequence[Row], side: int) -> list[EncodedText | RowFault]:
        """Tokenise the questions (`side` 0) or answers (1) of rows as text, without a template."""
        fault = RowFault(
            "the base model has no chat template, so only rows of one prompt and one answer can be "
            "learned; use a chat model or 'prompt'/'completion' rows"
        )
        good = [row for row in rows if _is_question(row)]
        texts = [self._literal_text.protect_text(row.messages[side]["content"]) for row in good]
        encoded = iter(
            self._encode_texts(
                [text for text, _ in texts],
                [literals for _, literals in texts],
                [""] * len(texts),
                add_special_tokens=side == 0,
            )
        )
        return [next(encoded) if _is_question(row) else fault for row in rows]


def _mark_turns(
    one: RenderedSample, tokens: Tokenized, turns: Sequence[LearnedTurn], *, is_part: bool
) -> TokenSample:
    """Mark the answers among the tokens, and append the last answer's end token if it has one."""
    learned = _mark([span for turn in turns for span in turn.spans], tokens.spans)
    ids = tokens.ids.astype(np.int32)
    if (end_id := turns[-1].end_id) is not None:
        ids, learned = np.append(ids, np.int32(end_id)), np.append(learned, np.True_)
    return TokenSample(one.row.line, ids, learned, is_part=is_part)


def _describe_literal(exc: TemplateRefusedError) -> RowFault:
    return RowFault("its messages cannot be encoded as text: {}", exc)


def _mark(spans: Sequence[Span], offsets: IntArray) -> Mask:
    """Mark the tokens that have any character in a span."""
    starts, ends = offsets.T
    learned = np.zeros(len(offsets), dtype=np.bool_)
    for span_start, span_end in spans:
        learned |= (starts < span_end) & (ends > span_start)
    return learned


def _encode_raw_texts(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[TokenSample | RowFault]:
    """Tokenise plain texts, each ending with the end-of-text token; all tokens are learned."""
    with translate_faults():
        ids = tokenizer([row.text for row in rows], return_attention_mask=False)["input_ids"]
    eos = tokenizer.eos_token_id
    encoded: list[TokenSample | RowFault] = []
    for row, row_ids in zip(rows, ids, strict=True):
        is_ended = eos is None or row_ids[-1:] == [eos]
        whole = np.array(row_ids if is_ended else [*row_ids, eos], dtype=np.int32)
        encoded.append(TokenSample(row.line, whole, np.ones(len(whole), dtype=np.bool_)))
    return encoded


def _is_question(row: Row) -> bool:
    roles = [message["role"] for message in row.messages]
    return roles == ["user", "assistant"] and not row.tools and bool(row.messages[1]["content"])
