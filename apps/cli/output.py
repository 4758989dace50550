"""Output of the commands: formatted for users on a terminal, else for programs.

Names, messages and answers are untrusted. They are printed unchanged, except that characters that
could move the terminal's cursor or change its text direction are escaped.
"""

import codecs
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LINE_CONTROLS = {ord("\n"), ord("\t")}
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - _LINE_CONTROLS
_TURNS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F}  # text direction
_HALVES = set(range(0xD800, 0xE000))  # surrogates, which UTF-8 cannot encode
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS | _TURNS | _HALVES}
_GAP, _LEAST_WIDTH = 2, 10
_BETWEEN_CELLS = str.maketrans("\t\n", "  ")

console = Console(markup=False, emoji=False, highlight=False)
notes = Console(stderr=True, markup=False, emoji=False, highlight=False)
"""Standard error, for progress and errors; only results go to standard output."""


class Rows(NamedTuple):
    """A table: rows of cells and the column names; without names, the properties of one item."""

    cells: Sequence[tuple[str, ...]]
    names: tuple[str, ...] = ()


def escape_controls(text: str) -> str:
    """Escape every character that would control a terminal; keep newlines and tabs."""
    return text.translate(_ESCAPES)


def show(answer: object, as_json: bool, render: Callable[[], str | Rows]) -> None:
    """Print a response as JSON, or as the result of `render`."""
    if as_json:
        print_json(answer)
        return
    shown = render()
    if isinstance(shown, str):
        print_message(shown)
    else:
        _print_rows(shown)


def print_json(answer: object) -> None:
    """Print a response as one line of JSON, for programs."""
    typer.echo(escape_controls(json.dumps(answer, ensure_ascii=False)))


def print_message(message: str) -> None:
    """Print a message; it is wrapped only on a terminal."""
    console.print(escape_controls(message), soft_wrap=not console.is_terminal)


def fail(reason: object) -> NoReturn:
    """Print an error and end the command with exit status 1."""
    notes.print(escape_controls(f"error: {reason}"), soft_wrap=not notes.is_terminal)
    raise typer.Exit(1)


def write_text(text: str) -> None:
    """Print a piece of an answer; escape control characters only on a terminal."""
    typer.echo(escape_controls(text) if sys.stdout.isatty() else text, nl=False)


async def write_bytes(pieces: AsyncIterator[bytes]) -> None:
    """Print the content of a file: on a terminal as `write_text` does, else unchanged."""
    if sys.stdout.isatty():
        async for text in decode(pieces):
            write_text(text.replace("\r\n", "\n").replace("\r", "\n"))
        return
    output = typer.get_binary_stream("stdout")
    async for piece in pieces:
        output.write(piece)
        output.flush()


async def decode(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Decode pieces of UTF-8, even if a piece ends within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def show_time(unix_s: float | None) -> str:
    """Format a Unix time in the local time zone; empty for None."""
    return "" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def show_size(num_bytes: int) -> str:
    """Format a number of bytes for users."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"


def _print_rows(rows: Rows) -> None:
    """Print a table on a terminal, else lines of tab-separated cells.

    Only the last column is wrapped, so that the names in the others can be copied. If the terminal
    is too narrow for that, tab-separated lines are printed too.
    """
    escaped = [[escape_controls(cell) for cell in row] for row in rows.cells]
    widths = [max(map(cell_len, column)) for column in zip(*escaped, strict=True)][:-1]
    is_too_wide = sum(widths) + _GAP * len(widths) + _LEAST_WIDTH > console.width
    if not console.is_terminal or is_too_wide:
        for row in escaped:
            typer.echo("\t".join(cell.translate(_BETWEEN_CELLS) for cell in row))
        return
    table = Table(box=None, padding=(0, _GAP, 0, 0), show_header=bool(rows.names))
    *names, last = rows.names or ("", "")
    for name in names:
        table.add_column(name, no_wrap=True)
    table.add_column(last, overflow="fold")
    for row in escaped:
        table.add_row(*map(Text, row))
    console.print(table)
