"""Splitting of a rendered text into control tokens, literals (from placeholders) and the rest."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Egyptian hieroglyphs: no template, normalizer or pre-tokenizer treats them specially, and neither
# `repr` nor `tojson` escapes them, unlike private-use characters.
PLACEHOLDERS = [chr(code) for code in range(0x13000, 0x1342F)]
PLACEHOLDER = re.compile(f"[{PLACEHOLDERS[0]}-{PLACEHOLDERS[-1]}]")
IntArray = npt.NDArray[np.int64]


class EncodedText(NamedTuple):
    """Token ids, and the start and end character of each token in the text with placeholders."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokens(NamedTuple):
    """Tokens as arrays, since a text may have a million tokens; `spans` has shape (tokens, 2)."""

    ids: IntArray
    spans: IntArray

    def to_encoded(self) -> EncodedText:
        """Return the tokens as lists."""
        begin, end = self.spans.T
        return EncodedText(self.ids.tolist(), list(zip(begin.tolist(), end.tolist(), strict=True)))


class Piece(NamedTuple):
    """A part of a rendered text: the `text` to tokenize for it, or a control token."""

    start: int
    end: int
    text: str
    control_id: int | None = None


def restore_literals(text: str, literals: Mapping[str, str]) -> str:
    """Replace placeholders by the original texts."""
    if not literals:
        return text
    return PLACEHOLDER.sub(lambda found: literals.get(found.group(), found.group()), text)


def cut_text(
    text: str, spans: Iterable[tuple[int, int, int]], literals: Mapping[str, str]
) -> list[Piece]:
    """Split a text with placeholders into control tokens, literals and the text between them."""
    pieces: list[Piece] = []

    def add_text(start: int, end: int) -> None:
        place = start
        for match in PLACEHOLDER.finditer(text, start, end):
            if match.group() in literals:
                if place < match.start():
                    pieces.append(Piece(place, match.start(), text[place : match.start()]))
                pieces.append(Piece(*match.span(), literals[match.group()]))
                place = match.end()
        if place < end:
            pieces.append(Piece(place, end, text[place:end]))

    done = 0
    for start, end, token in spans:
        add_text(done, start)
        pieces.append(Piece(start, end, "", token))
        done = end
    add_text(done, len(text))
    return pieces


def merge_controls(
    pieces: Sequence[Piece],
    starts: Sequence[int],
    token_ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
) -> Tokens:
    """Merge the control tokens with the tokens of the other pieces.

    `starts` are the offsets of the pieces in the tokenized text, `offsets` the start and end of
    each token in it. The returned spans refer to the text with placeholders.
    """
    piece_starts = np.array(starts, dtype=np.int64)
    piece_spans = _to_spans((piece.start, piece.end) for piece in pieces)
    controls = np.array(
        [-1 if piece.control_id is None else piece.control_id for piece in pieces], dtype=np.int64
    )
    ids, spans = np.array(token_ids, dtype=np.int64), _to_spans(offsets)
    first = np.searchsorted(piece_starts, spans[:, 0], side="right") - 1
    is_kept = controls[first] < 0  # drop the tokens of separators, which replace control tokens
    ids, first = ids[is_kept], first[is_kept]
    begin, end = spans[is_kept].T
    last = np.searchsorted(piece_starts, np.maximum(begin, end - 1), side="right") - 1
    last = np.maximum(first, last)
    # Clip to the piece, because a literal is longer than its placeholder.
    from_ = piece_spans[first, 0] + begin - piece_starts[first]
    from_ = np.minimum(from_, piece_spans[first, 1] - 1)
    to = piece_spans[last, 0] + end - piece_starts[last]
    to = np.maximum(np.minimum(to, piece_spans[last, 1]), from_)
    is_control = controls >= 0
    places = np.concatenate((begin, piece_starts[is_control]))
    order = np.argsort(places, kind="stable")  # tokens of one character keep their order
    return Tokens(
        np.concatenate((ids, controls[is_control]))[order],
        np.concatenate((np.stack((from_, to), axis=1), piece_spans[is_control]))[order],
    )


def _to_spans(pairs: Iterable[tuple[int, int]]) -> IntArray:
    return np.fromiter(chain.from_iterable(pairs), dtype=np.int64).reshape(-1, 2)
