"""Tables as CSV for spreadsheets, which compute nothing that the cells contain."""

import csv
import io
from collections.abc import Iterable

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv_line(cells: Iterable[object]) -> bytes:
    """Return a line of a table.

    A text that a spreadsheet would take for a formula begins with an apostrophe; numbers are kept.
    """
    output = io.StringIO(newline="")
    csv.writer(output).writerow(map(_neutralise, cells))
    return output.getvalue().encode()


def _neutralise(cell: object) -> object:
    if isinstance(cell, bool):
        return str(cell).lower()
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell
