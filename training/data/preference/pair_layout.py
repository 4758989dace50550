"""The columns of rows with two sides, each a sequence of tokens with a mask of learned ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from training.data.row_table import Counts, make_lists, read_list, view_column
from training.data.text.encoding import TokenSample
from training.data.text.token_layout import TokenRow


@dataclass(frozen=True)
class PairSample:
    """Two sides as tokens: the good and the bad answer after the same prompt.

    For KTO the second side is the prompt with the answer of another row, and `verdict` is whether
    the first is good.
    """

    first: TokenSample
    second: TokenSample
    verdict: bool | None = None
    number: int = 0
    is_part: bool = False

    @property
    def line(self) -> int:
        """The line of the row in its file."""
        return self.first.line

    @property
    def length(self) -> int:
        """The tokens of its longer side."""
        return max(self.first.length, self.second.length)

    @property
    def truncated_tokens(self) -> int:
        """The tokens that were cut off its own answers: for KTO, off the first side."""
        cut = self.first.truncated_tokens
        return cut if self.verdict is not None else cut + self.second.truncated_tokens

    @property
    def num_targets(self) -> int:
        """The learned tokens of both sides; 0 if a side has none, or if both are the same."""
        counts = self.first.num_targets, self.second.num_targets
        same = self.verdict is None and np.array_equal(self.first.input_ids, self.second.input_ids)
        return 0 if not all(counts) or same else sum(counts)

    @property
    def size_bytes(self) -> int:
        """Its size in a table."""
        return self.first.size_bytes + self.second.size_bytes

    def renumber(self, number: int) -> "PairSample":
        """Return a copy with the number of its row."""
        return replace(self, number=number)

    def truncate(self, max_length: int) -> "PairSample":
        """Truncate both sides to their first `max_length` tokens."""
        first, second = self.first.truncate(max_length), self.second.truncate(max_length)
        return replace(self, first=first, second=second)


class PairRow(NamedTuple):
    """A row as it is read: both sides, the verdict for KTO, and the reference log-probabilities.

    `references` are those of the answers of both sides; zeros as long as none are computed.
    """

    first: TokenRow
    second: TokenRow
    verdict: bool | None
    references: tuple[float, float] = (0.0, 0.0)


class PairLayout:
    """Rows of two sides; a length counts the tokens of both sides with their padding."""

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("number", pa.int64()),
            ("first_ids", pa.list_(pa.int32())),
            ("first_learned", pa.list_(pa.bool_())),
            ("second_ids", pa.list_(pa.int32())),
            ("second_learned", pa.list_(pa.bool_())),
            ("verdict", pa.bool_()),
            ("num_learned", pa.int32()),
            ("num_padded", pa.int32()),
            ("truncated_tokens", pa.int32()),
        ]
    )

    def make_batch(self, rows: Sequence[PairSample]) -> Any:
        """Return the rows as a record batch."""
        sides = [[row.first for row in rows], [row.second for row in rows]]
        cut = [row.truncated_tokens for row in rows]
        columns = [
            pa.array([row.line for row in rows], pa.int64()),
            pa.array([row.number for row in rows], pa.int64()),
        ]
        for side in sides:
            columns.append(make_lists([one.input_ids for one in side], pa.int32()))
            columns.append(make_lists([one.learned for one in side], pa.bool_()))
        columns += [
            pa.array([row.verdict for row in rows], pa.bool_()),
            pa.array([row.num_targets for row in rows], pa.int32()),
            pa.array([2 * row.length for row in rows], pa.int32()),
            pa.array(cut, pa.int32()),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def measure_rows(self, batch: Any) -> Counts:
        """Return twice the tokens of the longer side of each row."""
        return view_column(batch, "num_padded")

    def count_targets(self, batch: Any) -> Counts:
        """Return the learned tokens of each row."""
        return view_column(batch, "num_learned")

    def read_row(self, batch: Any, place: int) -> PairRow:
        """Read a row; the arrays of each side have the shape `[length]`."""
        first, second = (self._read_side(batch, name, place) for name in ("first", "second"))
        return PairRow(first, second, batch.column("verdict")[place].as_py())

    def _read_side(self, batch: Any, name: str, place: int) -> TokenRow:
        mask = read_list(batch, f"{name}_learned", place).to_numpy(zero_copy_only=False)
        return read_list(batch, f"{name}_ids", place).to_numpy(), mask


PAIR_LAYOUT = PairLayout()
