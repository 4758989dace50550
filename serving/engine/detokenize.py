"""Streaming conversion of token ids to text: complete characters only, cut at stop strings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
