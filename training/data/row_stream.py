"""Streaming of one source of rows to encoded rows, with counts of the rows that are left out."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Generic, Literal

from training.data.faults import RowFault, RowFaultLog
from training.data.readers import RowSource
from training.data.row_counts import RowCounts, describe_empty
from training.data.rows import Encoded, Parsed, ParsedRow, RowReader

# Both limit a batch; a row with more bytes than the second is a batch of one row.
_BATCH_ROWS = 512
_BATCH_BYTES = 1 << 18

Overlong = Literal["truncate", "drop", "refuse"]


class RowStream(Generic[Parsed, Encoded]):
    """Reads, parses and encodes the rows of one source, and fits them to `max_length`.

    `overlong` says what becomes of longer rows. The counts are final once `encode` is exhausted.
    `num_before` rows of the source precede those that are read.
    """

    def __init__(
        self,
        source: RowSource,
        reader: RowReader[Parsed, Encoded],
        max_length: int,
        overlong: Overlong = "truncate",
        num_before: int = 0,
    ) -> None:
        self.source = source
        self.counts = RowCounts(RowFaultLog(source.name, source.unit))
        self._noted: dict[str, int] = {}  # the number of the last row noted, by kind of note
        self._reader = reader
        self._max_length = max_length
        self._overlong = overlong
        self._num_before = num_before

    @property
    def format(self) -> str:
        """The format of the rows; raises `DataError` if there are none."""
        if self._reader.format is None:
            raise describe_empty(self.source.name)
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
        yield from self.encode_unchecked(num_rows, on_read)
        self.counts.check(self.source.name, self.source.unit, self._max_length)

    def encode_unchecked(
        self, num_rows: int | None = None, on_read: Callable[[], None] = lambda: None
    ) -> Generator[Encoded, None, None]:
        """Yield samples as `encode` does, but leave it to the caller to check the counts."""
        with closing(self._reader):
            batches = form_batches(self._parse(num_rows, on_read))
            for row, encoded in self._reader.encode(batches):
                if not isinstance(encoded, RowFault) and encoded.is_part:
                    self.counts.num_split += self._is_first(row, "split")
                fitted = self._fit(row, encoded)
                if fitted is not None:
                    self.counts.num_samples += 1
                    yield fitted.renumber(row.number)

    def _parse(self, num_rows: int | None, on_read: Callable[[], None]) -> Iterator[Parsed]:
        for line, record in self.source.read():
            self.counts.num_rows += 1
            number = self._num_before + self.counts.num_rows
            on_read()
            try:
                if isinstance(record, RowFault):
                    raise record
                row = self._reader.parse(line, record, number)
            except RowFault as fault:
                self.counts.faults.add(line, fault, number)
            else:
                self.counts.ignored_keys.add(row.ignored)
                yield row
            if self.counts.num_rows == num_rows:
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
            self.counts.drop(row.line)
        return None

    def _add_fault(self, row: ParsedRow, fault: RowFault) -> None:
        if self._is_first(row, "faulty"):
            self.counts.faults.add(row.line, fault, row.number)

    def _is_first(self, row: ParsedRow, what: str) -> bool:
        """Return whether `what` is noted for a row for the first time; its samples are adjacent."""
        is_first = self._noted.get(what) != row.number
        self._noted[what] = row.number
        return is_first


def form_batches(rows: Iterable[Parsed], max_rows: int = _BATCH_ROWS) -> Iterator[list[Parsed]]:
    """Yield batches of at most `max_rows` rows and 256 KiB; a larger row is a batch of its own."""
    batch: list[Parsed] = []
    num_bytes = 0
    for row in rows:
        if batch and (len(batch) == max_rows or num_bytes + row.size_bytes > _BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(row)
        num_bytes += row.size_bytes
    if batch:
        yield batch
