"""Conversion of the tokens of one request to pieces of its answer."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serving.engine.detokenize import Detokenizer, StopCutter
from serving.engine.messages import Likelihood
from serving.openai.protocol import FinishReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenText:
    """One token as text and as UTF-8 bytes; the bytes are None for a part of a character."""

    text: str
    utf8: tuple[int, ...] | None


@dataclass(frozen=True)
class ToldToken:
    """A token of an answer or prompt with its log-probability and the top tokens at its position.

    Log-probabilities are natural logarithms; the first token of a prompt has none. `is_end` marks
    the token that ended an answer; its text is not part of the answer.
    """

    token: TokenText
    logprob: float | None
    top: tuple[tuple[TokenText, float], ...] = ()
    is_end: bool = False


@dataclass(frozen=True)
class Piece:
    """Some text of an answer; the last piece also has the finish reason and the token counts.

    `num_completion_tokens` counts every generated token, including the one that ended the answer.
    `tokens` are the tokens whose text is complete with this piece, if the request asked for them.
    """

    text: str
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    tokens: tuple[ToldToken, ...] = ()


class TokenSpeller:
    """Decodes single tokens as they appear within a text, and caches the results."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._spelled: dict[int, TokenText] = {}  # bounded by the size of the vocabulary
        # Some tokenizers drop the leading space of the first token.
        self._before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        self._num_before = len(self._decode(self._before))

    def spell(self, token_id: int) -> TokenText:
        """Decode one token."""
        if (spelled := self._spelled.get(token_id)) is None:
            text = self._decode([*self._before, token_id])[self._num_before :]
            is_part = "\N{REPLACEMENT CHARACTER}" in text
            spelled = TokenText(text, None if is_part else tuple(text.encode()))
            self._spelled[token_id] = spelled
        return spelled

    def tell(self, token_id: int, likelihood: Likelihood | None) -> ToldToken:
        """Decode a token and attach its log-probabilities."""
        if likelihood is None:
            return ToldToken(self.spell(token_id), None)
        top = tuple((self.spell(other), logprob) for other, logprob in likelihood.top)
        return ToldToken(self.spell(token_id), likelihood.logprob, top)

    def _decode(self, token_ids: list[int]) -> str:
        text = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class AnswerReader:
    """Converts the tokens of one request to pieces of text until the answer ends."""

    def __init__(
        self,
        num_prompt_tokens: int,
        eos_ids: Sequence[int],
        tokenizer: "PreTrainedTokenizerBase",
        speller: TokenSpeller,
        stops: Sequence[str],
    ) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._eos_ids = frozenset(eos_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._cutter = StopCutter(stops)
        self._speller = speller
        self._num_read = 0
        self._num_decoded = 0  # characters
        self._num_shown = 0
        # Tokens that are not yet part of a piece, each with the offset where its text ends.
        self._untold: deque[tuple[int, ToldToken]] = deque()
        self.is_finished = False

    def read(
        self, tokens: Sequence[int], likelihoods: Sequence[Likelihood], *, is_finished: bool
    ) -> Piece | None:
        """Return the new text, or None while none is certain.

        `tokens` are all tokens so far; `likelihoods` are those of all tokens, or empty if the
        request did not ask for them.
        """
        text = ""
        reason: FinishReason | None = None
        for index in range(self._num_read, len(tokens)):
            self._num_read += 1
            if tokens[index] in self._eos_ids:
                reason = "stop"
                if likelihoods:
                    end = self._speller.tell(tokens[index], likelihoods[index])
                    self._untold.append((self._num_decoded, replace(end, is_end=True)))
                break
            text += self._decode(self._detokenizer.push(tokens[index]))
            if likelihoods:
                told = self._speller.tell(tokens[index], likelihoods[index])
                self._untold.append((self._num_decoded, told))
            if self._cutter.stopped:
                reason = "stop"
                break
        if reason is None and is_finished:
            reason = "length"
        if reason is not None:
            text += self._decode(self._detokenizer.finish())
            reason = "stop" if self._cutter.stopped else reason
            text += self._cutter.finish()
            self.is_finished = True
        elif not text:
            return None
        self._num_shown += len(text)
        told_tokens = tuple(self._take_told())
        if reason is None:
            return Piece(text, tokens=told_tokens)
        return Piece(text, reason, self._num_prompt_tokens, self._num_read, told_tokens)

    def _decode(self, piece: str) -> str:
        self._num_decoded += len(piece)
        return self._cutter.push(piece)

    def _take_told(self) -> Iterator[ToldToken]:
        """Yield the tokens whose text has been returned; tokens of a stop string never are."""
        is_whole = self.is_finished and not self._cutter.stopped
        while self._untold and (is_whole or self._untold[0][0] <= self._num_shown):
            yield self._untold.popleft()[1]
