"""From the tokens of one request to pieces of its answer."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serving.engine_messages import Likelihood
from serving.protocol import FinishReason
from serving.text_stream import Detokenizer, StopCutter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenText:
    """One token as text, and its bytes unless it is only a part of a character."""

    text: str
    utf8: tuple[int, ...] | None


@dataclass(frozen=True)
class ToldToken:
    """A token of an answer or a prompt; how likely it was, and the likeliest in its place.

    Log-probabilities are natural; the first token of a prompt has none. `is_end` marks the token
    that ended an answer and has no text in it.
    """

    token: TokenText
    logprob: float | None
    top: tuple[tuple[TokenText, float], ...] = ()
    is_end: bool = False


@dataclass(frozen=True)
class Piece:
    """Some text of an answer; the last one also says why it ended and counts all tokens.

    `num_completion_tokens` counts every token generated, the one that ended the answer included.
    `tokens` are those that are complete with this text, if they were asked for.
    """

    text: str
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    tokens: tuple[ToldToken, ...] = ()


class TokenSpeller:
    """Writes single tokens as they are within a text, each worked out once."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._spelled: dict[int, TokenText] = {}  # no more than the vocabulary
        # Some tokenizers drop the space before a token that comes first.
        self._before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        self._num_before = len(self._decode(self._before))

    def spell(self, token_id: int) -> TokenText:
        """Write one token."""
        if (spelled := self._spelled.get(token_id)) is None:
            text = self._decode([*self._before, token_id])[self._num_before :]
            is_part = "\N{REPLACEMENT CHARACTER}" in text
            spelled = TokenText(text, None if is_part else tuple(text.encode()))
            self._spelled[token_id] = spelled
        return spelled

    def tell(self, token_id: int, likelihood: Likelihood | None) -> ToldToken:
        """Write a token and how likely it was."""
        if likelihood is None:
            return ToldToken(self.spell(token_id), None)
        top = tuple((self.spell(other), logprob) for other, logprob in likelihood.top)
        return ToldToken(self.spell(token_id), likelihood.logprob, top)

    def _decode(self, token_ids: list[int]) -> str:
        text = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class AnswerReader:
    """Reads the tokens of one request into pieces of text, up to its end."""

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
        self._untold: deque[tuple[int, ToldToken]] = deque()  # each with where its text ends
        self.is_finished = False

    def read(
        self, tokens: Sequence[int], likelihoods: Sequence[Likelihood], *, is_finished: bool
    ) -> Piece | None:
        """Return what is new in `tokens`, all so far, or None while that is no certain text.

        `likelihoods` are those of all tokens, or none if nobody asked.
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
        """Take the tokens whose text has been shown; those of a stop never are."""
        is_whole = self.is_finished and not self._cutter.stopped
        while self._untold and (is_whole or self._untold[0][0] <= self._num_shown):
            yield self._untold.popleft()[1]
