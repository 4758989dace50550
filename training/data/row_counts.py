"""What became of the rows of a source, or of a part of it."""

from dataclasses import dataclass, field
from typing import Any

from training.data.faults import (
    MAX_LINES_SHOWN,
    DataError,
    IgnoredKeys,
    RowFaultLog,
    describe_lines,
)


@dataclass
class RowCounts:
    """Counts of the rows read, and of those that are left out; its size does not grow with them.

    `dropped_lines` are the first of the lines of dropped rows; `num_split` rows became several
    samples.
    """

    faults: RowFaultLog
    num_rows: int = 0
    num_samples: int = 0
    num_dropped: int = 0
    dropped_lines: list[int] = field(default_factory=list)
    num_split: int = 0
    ignored_keys: IgnoredKeys = field(default_factory=IgnoredKeys)

    def add(self, later: "RowCounts") -> None:
        """Add the counts of the rows that follow these in the source."""
        self.faults.add_log(later.faults)
        self.num_rows += later.num_rows
        self.num_samples += later.num_samples
        self.num_dropped += later.num_dropped
        self.dropped_lines = (self.dropped_lines + later.dropped_lines)[:MAX_LINES_SHOWN]
        self.num_split += later.num_split
        for name, num_rows in later.ignored_keys.counts.items():
            self.ignored_keys.add([name], num_rows)

    def drop(self, line: int) -> None:
        """Count a row that is too long."""
        self.num_dropped += 1
        if len(self.dropped_lines) < MAX_LINES_SHOWN:
            self.dropped_lines.append(line)

    def check(self, name: str, unit: str, max_length: int) -> None:
        """Raise `DataError` if a row of the source cannot be used, or none is left."""
        self.faults.raise_if_any(self.num_rows)
        if not self.num_rows:
            raise describe_empty(name)
        if not self.num_samples:
            lines = describe_lines(self.dropped_lines, self.num_dropped, unit)
            raise DataError(
                f"{name}: no row is left: all have more than max_length {max_length} tokens, or "
                f"nothing to learn within them ({lines}); raise max_length"
            )

    def describe(self) -> dict[str, Any]:
        """Describe the rows left out, for the summary of the data."""
        return {
            "num_dropped_rows": self.num_dropped,
            "dropped_lines": self.dropped_lines,
            "num_split_rows": self.num_split,
            "ignored_keys": self.ignored_keys.counts,
        }


def describe_empty(name: str) -> DataError:
    """Return the error of a source without rows."""
    return DataError(f"{name} holds no rows: expected at least one")
