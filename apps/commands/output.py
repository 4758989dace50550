"""What a command prints: on a terminal for people, elsewhere for programs.

Names, messages and answers come from elsewhere. They are printed as they are, but without power
over the terminal: characters that would move its cursor or turn its text about are written out.
"""

import codecs
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LINE_CONTROLS = {ord("\n"), ord("\t")}
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - _LINE_CONTROLS
_TURNS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F}  # left to right, or back
_HALVES = set(range(0xD800, 0xE000))  # of characters that UTF-8 does not write
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS | _TURNS | _HALVES}
_GAP, _LEAST_WIDTH = 2, 10
_BETWEEN_CELLS = str.maketrans("\t\n", "  ")

console = Console(markup=False, emoji=False, highlight=False)
notes = Console(stderr=True, markup=False, emoji=False, highlight=False)
"""Where progress and errors go: what is asked for goes to standard output alone."""


class Rows(NamedTuple):
    """A table: entries below the names of its columns; without names, one thing's properties."""

    cells: Sequence[tuple[str, ...]]
    names: tuple[str, ...] = ()


def escape_controls(text: str) -> str:
    """Write out every character that a terminal would obey; ends of lines and tabs stay."""
    return text.translate(_ESCAPES)


def show(answer: Any, as_json: bool, render: Callable[[Any], str | Rows]) -> None:
    """Print an answer, as JSON or as `render` makes it."""
    if as_json:
        print_json(answer)
        return
    shown = render(answer)
    if isinstance(shown, str):
        say(shown)
    else:
        _print_rows(shown)


def print_json(answer: Any) -> None:
    """Print an answer on one line, for programs."""
    typer.echo(escape_controls(json.dumps(answer, ensure_ascii=False)))


def say(message: str) -> None:
    """Print a sentence, which only a terminal breaks into lines."""
    console.print(escape_controls(message), soft_wrap=not console.is_terminal)


def fail(reason: object) -> NoReturn:
    """End the command with a reason."""
    notes.print(escape_controls(f"error: {reason}"), soft_wrap=not notes.is_terminal)
    raise typer.Exit(1)


def write_text(text: str) -> None:
    """Print a piece of an answer; whole and unchanged where no terminal obeys it."""
    typer.echo(escape_controls(text) if sys.stdout.isatty() else text, nl=False)


def write_bytes(pieces: Iterator[bytes]) -> None:
    """Print the content of a file, as `write_text` does."""
    if sys.stdout.isatty():
        for text in decode(pieces):
            write_text(text.replace("\r\n", "\n").replace("\r", "\n"))
        return
    output = typer.get_binary_stream("stdout")
    for piece in pieces:
        output.write(piece)
        output.flush()


def decode(pieces: Iterator[bytes]) -> Iterator[str]:
    """Turn bytes into text, also where a piece ends within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def show_time(unix_s: float | None) -> str:
    """Write a time as the local clock shows it."""
    return "" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def show_size(num_bytes: int) -> str:
    """Write a number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"


def _print_rows(rows: Rows) -> None:
    """Draw a table; elsewhere than on a terminal, lines whose cells have tabs between them.

    Somebody may copy the names in it: only the last column is broken into lines, and where the
    terminal is too narrow even so, there is no table.
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
