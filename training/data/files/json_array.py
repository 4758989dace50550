"""Streaming reader of the elements of a JSON array; its buffer holds little more than one."""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from training.data.faults import RowFault

_CHUNK_BYTES = 1 << 16
_LONGEST_TOKEN = 16  # characters of a word or escape that the end of the window may cut
_NO_SPACE = re.compile(r"[^ \t\n\r]")  # JSON has only these four spaces


def read_array(
    file: BinaryIO, make_object: Callable[[list[tuple[str, Any]]], Any], max_characters: int
) -> Iterator[tuple[int, Any]]:
    """Yield each element with the line on which it begins.

    If the array is malformed, its fault is yielded last, because nothing after it can be read.
    """
    window = _Window(file, max_characters)
    try:
        yield from _read_elements(window, json.JSONDecoder(object_pairs_hook=make_object))
    except RowFault as fault:
        yield window.line, fault


def describe_json_error(exc: json.JSONDecodeError) -> str:
    """Return Python's message, without the suffix that announces a position."""
    return exc.msg.removesuffix(" starting at")


def _read_elements(window: "_Window", decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    window.take_mark("[")
    is_open = window.find_mark() != "]"
    if not is_open:
        window.take_mark("]")
    while is_open:
        window.find_mark()
        line = window.line
        yield line, window.take_value(decoder)
        is_open = window.take_mark(",]") == ","
    if window.find_mark():
        raise RowFault("expected nothing after the array's ']'")


class _Window:
    """A window of the decoded file; the text from `_position` on has not been consumed."""

    def __init__(self, file: BinaryIO, max_characters: int) -> None:
        self._file = file
        self._max_characters = max_characters
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0
        self._is_complete = False
        self._fault: RowFault | None = None  # raised once the text before it is consumed
        self.line = 1

    def find_mark(self) -> str:
        """Advance to the next non-space character and return it; '' at the end of the file."""
        while True:
            found = _NO_SPACE.search(self._text, self._position)
            self._advance(found.start() if found else len(self._text))
            if found:
                return found.group()
            if not self._read_more():
                return ""

    def take_mark(self, expected: str) -> str:
        """Consume and return one of the expected marks; raises `RowFault` for anything else."""
        mark = self.find_mark()
        if not mark:
            raise RowFault("the file ends before the array's ']'; it seems cut off")
        if mark not in expected:
            raise RowFault("expected ',' or ']' after the row, found {!r}", mark)
        self._advance(self._position + 1)
        return mark

    def take_value(self, decoder: json.JSONDecoder) -> Any:
        """Consume and return one value, reading until all of it is in the window.

        Returns the `RowFault` of an object that is complete but not usable.
        """
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as exc:
                if not self._is_certain(exc) and self._read_more():
                    continue
                self._refuse(exc)
            except (ValueError, RecursionError) as exc:
                if isinstance(exc, RowFault):
                    return self._skip_value(exc)
                raise RowFault("cannot be read ({}), nor what follows", exc) from exc
            else:
                is_cut = isinstance(value, int | float) and end > len(self._text) - _LONGEST_TOKEN
                if not is_cut or not self._read_more():  # a number may continue after the window
                    self._advance(end)
                    return value

    def _skip_value(self, fault: RowFault) -> RowFault:
        self.take_value(json.JSONDecoder())
        return fault

    def _is_certain(self, exc: json.JSONDecodeError) -> bool:
        """Return whether this is an error whatever the rest of the file contains."""
        margin = 0 if self._is_complete else _LONGEST_TOKEN
        return "Unterminated" not in exc.msg and exc.pos < len(self._text.rstrip()) - margin

    def _refuse(self, exc: json.JSONDecodeError) -> None:
        if self._is_certain(exc):
            self._advance(exc.pos)  # for the line number
            reason = describe_json_error(exc)
            raise RowFault("not JSON ({}), so what follows cannot be read", reason)
        if not self._is_complete:
            raise RowFault("longer than {:,} characters", self._max_characters)
        raise RowFault("not JSON ({}): the file ends within the row", describe_json_error(exc))

    def _advance(self, position: int) -> None:
        self.line += self._text.count("\n", self._position, position)
        self._position = position

    def _read_more(self) -> bool:
        """Double the content of the window; returns whether there was more to read."""
        if self._fault is not None:
            raise self._fault
        kept = len(self._text) - self._position
        more = ""
        while not (more or self._is_complete or kept > self._max_characters):
            chunk = self._file.read(max(_CHUNK_BYTES, kept))
            self._is_complete = not chunk
            try:
                more = self._decoder.decode(chunk, final=self._is_complete)
            except UnicodeDecodeError as exc:
                more = exc.object[: exc.start].decode()
                byte = exc.object[exc.start]
                pattern = "not UTF-8 (byte {:#04x}), so what follows cannot be read"
                self._fault = RowFault(pattern, byte)
        if more:
            self._text = self._text[self._position :] + more
            self._position = 0
        return bool(more)
