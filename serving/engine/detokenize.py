"""Streaming conversion of the tokens of one request to pieces of its answer.

Text is cut at stop strings, and never within a character.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from serving.engine.messages import Likelihood
from serving.openai.protocol import FinishReason
from serving.wire import Piece, TokenLogprob, TokenText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# More tokens than one character can have, so the text really contains replacement characters or the
# tokens are special. Without the limit the window, and the time to decode it, would keep growing.
_MAX_HELD_BACK = 16
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Converts token ids, one at a time, to pieces of text that concatenate to the whole text.

    Special tokens are skipped. Text that ends in replacement characters is held back, because its
    last bytes may be an incomplete character. Only a short window of tokens is decoded. The window
    begins with the tokens of the last piece, because some tokenizers (SentencePiece) drop the space
    before the first token.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_context = 0  # tokens at the start of the window whose text has been returned
        self._num_given_out = 0  # characters of the window's text that have been returned

    def push(self, token_id: int) -> str:
        """Add the next token and return the text that is certain now, which may be empty."""
        self._window.append(token_id)
        text = self._decode(self._window)
        certain = text.rstrip(_REPLACEMENT)
        is_held_too_long = len(self._window) - self._num_context > _MAX_HELD_BACK
        if is_held_too_long:
            certain = text
        piece = certain[self._num_given_out :]
        self._num_given_out = max(self._num_given_out, len(certain))
        if piece and certain == text:
            self._drop_context()
        elif is_held_too_long:  # special tokens, which have no text
            del self._window[self._num_context :]
        return piece

    def finish(self) -> str:
        """Return the text that was held back, including incomplete characters."""
        text = self._decode(self._window)
        piece = text[self._num_given_out :]
        self._num_given_out = len(text)
        return piece

    def _drop_context(self) -> None:
        # All text has been returned, so the window can begin at the last piece, which starts at a
        # character boundary.
        last_piece = self._window[self._num_context :]
        text = self._decode(last_piece)
        if text:
            self._window = last_piece
            self._num_context = len(last_piece)
            self._num_given_out = len(text)

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text


class StopCutter:
    """Cuts a text before the first stop string, however the text is split into pieces.

    The stop string that is complete first wins; if several end at the same character, the longest.
    A tail that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Add a piece and return the text that is certain; set `stopped` at a stop string."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        num_held = max((_count_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """Return the tail that was held back."""
        tail, self._held = self._held, ""
        return tail


def _count_overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class TokenDecoder:
    """Decodes single tokens as they appear within a text, and caches the results."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, TokenText] = {}  # bounded by the size of the vocabulary
        # Some tokenizers drop the leading space of the first token.
        self._before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        self._num_before = len(self._decode_ids(self._before))

    def decode(self, token_id: int) -> TokenText:
        """Decode one token."""
        if (decoded := self._cache.get(token_id)) is None:
            text = self._decode_ids([*self._before, token_id])[self._num_before :]
            is_part = _REPLACEMENT in text
            decoded = TokenText(text, None if is_part else tuple(text.encode()))
            self._cache[token_id] = decoded
        return decoded

    def describe(
        self, token_id: int, likelihood: Likelihood | None, *, is_end: bool = False
    ) -> TokenLogprob:
        """Decode a token and attach its log-probabilities."""
        if likelihood is None:
            return TokenLogprob(self.decode(token_id), None)
        top = tuple((self.decode(other), logprob) for other, logprob in likelihood.top)
        return TokenLogprob(self.decode(token_id), likelihood.logprob, top, is_end)

    def describe_all(
        self, token_ids: Sequence[int], likelihoods: Sequence[Likelihood | None]
    ) -> list[TokenLogprob]:
        """Decode tokens and attach their log-probabilities."""
        return [
            self.describe(token_id, likelihood)
            for token_id, likelihood in zip(token_ids, likelihoods, strict=True)
        ]

    def _decode_ids(self, token_ids: list[int]) -> str:
        text = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class AnswerReader:
    """Converts the tokens of the answer with number `choice_index` to pieces until it ends."""

    def __init__(
        self,
        choice_index: int,
        num_prompt_tokens: int,
        eos_ids: Sequence[int],
        tokenizer: "PreTrainedTokenizerBase",
        token_decoder: TokenDecoder,
        stops: Sequence[str],
    ) -> None:
        self._choice_index = choice_index
        self._num_prompt_tokens = num_prompt_tokens
        self._eos_ids = frozenset(eos_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._cutter = StopCutter(stops)
        self._token_decoder = token_decoder
        self._num_read = 0
        self._num_decoded = 0  # characters
        self._num_shown = 0
        # Tokens that are not yet part of a piece, each with the offset where its text ends.
        self._pending: deque[tuple[int, TokenLogprob]] = deque()
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
        for number in range(self._num_read, len(tokens)):
            self._num_read += 1
            token_id = tokens[number]
            if token_id in self._eos_ids:
                reason = "stop"
                if likelihoods:
                    end = self._token_decoder.describe(token_id, likelihoods[number], is_end=True)
                    self._pending.append((self._num_decoded, end))
                break
            text += self._decode(self._detokenizer.push(token_id))
            if likelihoods:
                described = self._token_decoder.describe(token_id, likelihoods[number])
                self._pending.append((self._num_decoded, described))
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
        complete = tuple(self._take_complete()) if self._pending else ()
        if reason is None:
            return Piece(self._choice_index, text, tokens=complete)
        return Piece(
            self._choice_index,
            text,
            reason,
            self._num_prompt_tokens,
            self._num_read,
            complete,
        )

    def _decode(self, piece: str) -> str:
        self._num_decoded += len(piece)
        return self._cutter.push(piece)

    def _take_complete(self) -> Iterator[TokenLogprob]:
        """Yield the tokens whose text has been returned; tokens of a stop string never are."""
        is_whole = self.is_finished and not self._cutter.stopped
        while self._pending and (is_whole or self._pending[0][0] <= self._num_shown):
            yield self._pending.popleft()[1]
