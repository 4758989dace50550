"""From token ids to the text that may be shown: whole characters only, and nothing past a stop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# More tokens than one character can have: they are what the text says, or special tokens. To decode
# all of them again with each further one would take ever longer.
_MAX_HELD_BACK = 16
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns token ids, one at a time, into pieces of text that join to the whole text.

    Special tokens are left out. Text that ends in replacement characters is held back: its last
    bytes may be the first half of a character. Decodes a short window rather than everything;
    the window begins with the tokens of the last piece, because some tokenizers (SentencePiece)
    drop the space in front of the first token that they are given.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_context = 0  # tokens at the window's start whose text is given out already
        self._num_given_out = 0  # characters of the window's text

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is certain now, perhaps none."""
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
        """Return what was held back; what is no character by now never becomes one."""
        text = self._decode(self._window)
        piece = text[self._num_given_out :]
        self._num_given_out = len(text)
        return piece

    def _drop_context(self) -> None:
        # All text is out, so the window may begin at the last piece, which begins a character.
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
    """Lets text through up to the first stop string, however the text is split into pieces.

    The stop that is complete first wins; of several complete at the same character, the longest.
    A tail that may still become a stop is held back until it is known.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Take a piece and return what may be shown; sets `stopped` once a stop is complete."""
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
        """Return the tail that was held back and became no stop."""
        tail, self._held = self._held, ""
        return tail


def _count_overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
