"""What the data path requires of the rows of a task, from records to the tensors of a batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

from training.data.faults import RowFault


class ParsedRow(Protocol):
    """A record that a task has checked and understood."""

    @property
    def line(self) -> int:
        """The line of the row in its file."""

    @property
    def number(self) -> int:
        """The number of the row in its source: several rows may be on one line."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys of the record that are not used."""

    @property
    def size_bytes(self) -> int:
        """The size of its content; rows are encoded in batches of limited size."""


class EncodedRow(Protocol):
    """One sample of a row, as a task stores it; samples of one row share its number."""

    @property
    def line(self) -> int:
        """The line of the row in its file."""

    @property
    def number(self) -> int:
        """The number of the row in its source."""

    @property
    def length(self) -> int:
        """What the limits of a row and of a micro batch count, such as tokens."""

    @property
    def num_targets(self) -> int:
        """How many predictions of the row the loss counts."""

    @property
    def is_part(self) -> bool:
        """Whether the row became several samples."""

    @property
    def size_bytes(self) -> int:
        """Its approximate size in a table."""

    def truncate(self, max_length: int) -> Self:
        """Truncate to `max_length`, and record how much was removed."""

    def renumber(self, number: int) -> Self:
        """Return a copy with the number of its row."""


Parsed = TypeVar("Parsed", bound=ParsedRow)
Encoded = TypeVar("Encoded", bound=EncodedRow, covariant=True)


class RowReader(Protocol[Parsed, Encoded]):
    """Turns the records of one source into encoded rows; must be closed."""

    @property
    def format(self) -> str | None:
        """The format of the rows; None before the first record."""

    def parse(self, line: int, record: Any, number: int) -> Parsed:
        """Parse one record, the row with this number.

        Raises `RowFault` for a row that cannot be used, and `DataError` if no row of the source
        can be.
        """

    def encode(
        self, batches: Iterable[Sequence[Parsed]]
    ) -> Iterator[tuple[Parsed, Encoded | RowFault]]:
        """Yield each row with each of its samples, or with the fault that excludes it.

        Raises `DataError` if encoding had to stop.
        """

    def describe(self) -> dict[str, Any]:
        """Describe the rows for the summary of the data, besides their counts."""

    def close(self) -> None:
        """Free what the reader uses."""
