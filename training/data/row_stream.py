"""Streaming of one source of rows to encoded rows, with counts of the rows that are left out."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Generic, Literal

from training.data.faults import (
    MAX_LINES_SHOWN,
    DataError,
    IgnoredKeys,
    RowFault,
    RowFaultLog,
    describe_lines,
)
from training.data.readers import RowSource
from training.data.rows import Encoded, Parsed, ParsedRow, RowReader

# Both limit a batch; a row with more bytes than the second is a batch of one row.
_BATCH_ROWS = 512
_BATCH_BYTES = 1 << 18

Overlong = Literal["truncate", "drop", "refuse"]


class RowStream(Generic[Parsed, Encoded]):
    """Reads, parses and encodes the rows of one source, and fits them to `max_length`.

    `overlong` says what becomes of longer rows. The counts are final once `encode` is exhausted.
    """

    def __init__(
        self,
        source: RowSource,
        reader: RowReader[Parsed, Encoded],
        max_length: int,
        overlong: Overlong = "truncate",
    ) -> None:
        self.source = source
        self.num_rows = 0
        self.num_dropped = 0
        self.dropped_lines: list[int] = []  # the first of them
        self.num_split = 0  # rows that became several samples
        self.ignored_keys = IgnoredKeys()
        self._noted: dict[str, int] = {}  # the number of the last row noted, by kind of note
        self._reader = reader
        self._max_length = max_length
        self._overlong = overlong
        self._faults = RowFaultLog(source.name, source.unit)

    @property
    def format(self) -> str:
        """The format of the rows; raises `DataError` if there are none."""
        if self._reader.format is None:
            raise DataError(f"{self.source.name} holds no rows: expected at least one")
        return self._reader.format

    def describe(self) -> dict[str, Any]:
        """Describe the rows; raises `DataError` if there are none."""
        return {"format": self.format, "max_length": self._max_length, **self._reader.describe()}

    def encode(
        self, num_rows: int | None = None, on_read: Callable[[], None] = lambda: None
    ) -> Generator[Encoded, None, None]:
        """Yield the samples of the rows, or of the first `num_rows`, that can be learned from.

        Calls `on_read` for every row read, whether it can be learned from or not. Raises
        `DataError` at the end, for all rows together, if any cannot be used; immediately if the
        first row has no known format, or if the reader had to stop.
        """
        num_samples = 0
        with closing(self._reader):
            batches = _form_batches(self._parse(num_rows, on_read))
            for row, encoded in self._reader.encode(batches):
                if not isinstance(encoded, RowFault) and encoded.is_part:
                    self.num_split += self._is_first(row, "split")
                fitted = self._fit(row, encoded)
                if fitted is not None:
                    num_samples += 1
                    yield fitted.renumber(row.number)
        self._faults.raise_if_any(self.num_rows)
        if not num_samples and self.format:
            lines = describe_lines(self.dropped_lines, self.num_dropped, self.source.unit)
            raise DataError(
                f"{self.source.name}: no row is left: all have more than max_length "
                f"{self._max_length} tokens, or nothing to learn within them ({lines}); raise "
                "max_length"
            )

    def _parse(self, num_rows: int | None, on_read: Callable[[], None]) -> Iterator[Parsed]:
        for line, record in self.source.read():
            self.num_rows += 1
            on_read()
            try:
                if isinstance(record, RowFault):
                    raise record
                row = self._reader.parse(line, record, self.num_rows)
            except RowFault as fault:
                self._faults.add(line, fault)
            else:
                self.ignored_keys.add(row.ignored)
                yield row
            if self.num_rows == num_rows:
                return

    def _fit(self, row: Parsed, encoded: Encoded | RowFault) -> Encoded | None:
        """Fit a sample to `max_length`; record why it is left out, and return None, if it is.

        A row counts once, however many of its samples are left out.
        """
        if isinstance(encoded, RowFault):
            self._add_fault(row, encoded)
            return None
        if encoded.num_targets == 0:
            fault = RowFault("nothing in its {} tokens is learned", encoded.length)
            self._add_fault(row, fault)
            return None
        if encoded.length <= self._max_length:
            return encoded
        if self._overlong == "refuse":
            pattern = (
                "{} tokens, more than max_length {}; shorten it, or set overlong to 'truncate'"
            )
            self._add_fault(row, RowFault(pattern, encoded.length, self._max_length))
            return None
        cut = encoded.truncate(self._max_length)
        if self._overlong == "truncate" and cut.num_targets:
            return cut
        if self._is_first(row, "dropped"):
            self.num_dropped += 1
            if len(self.dropped_lines) < MAX_LINES_SHOWN:
                self.dropped_lines.append(row.line)
        return None

    def _add_fault(self, row: ParsedRow, fault: RowFault) -> None:
        if self._is_first(row, "faulty"):
            self._faults.add(row.line, fault)

    def _is_first(self, row: ParsedRow, what: str) -> bool:
        """Return whether `what` is noted for a row for the first time; its samples are adjacent."""
        is_first = self._noted.get(what) != row.number
        self._noted[what] = row.number
        return is_first


def _form_batches(rows: Iterable[Parsed]) -> Iterator[list[Parsed]]:
    batch: list[Parsed] = []
    num_bytes = 0
    for row in rows:
        if batch and (len(batch) == _BATCH_ROWS or num_bytes + row.size_bytes > _BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(row)
        num_bytes += row.size_bytes
    if batch:
        yield batch
