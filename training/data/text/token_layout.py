"""The columns of rows of tokens with a mask of learned tokens."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from training.data.row_table import (
    Counts,
    make_lists,
    measure_lists,
    read_list,
    view_column,
)
from training.data.text.encoding import Mask, TokenIds, TokenSample

TokenRow = tuple[TokenIds, Mask]  # token ids, learned; both [length]


class TokenLayout:
    """Rows for a language model: a length counts tokens, the targets are the learned tokens."""

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("number", pa.int64()),
            ("input_ids", pa.list_(pa.int32())),
            ("learned", pa.list_(pa.bool_())),
            ("num_learned", pa.int32()),
            ("truncated_tokens", pa.int32()),
        ]
    )

    def make_batch(self, rows: Sequence[TokenSample]) -> Any:
        """Return the rows as a record batch."""
        columns = [
            pa.array([row.line for row in rows], pa.int64()),
            pa.array([row.number for row in rows], pa.int64()),
            make_lists([row.input_ids for row in rows], pa.int32()),
            make_lists([row.learned for row in rows], pa.bool_()),
            pa.array([row.num_targets for row in rows], pa.int32()),
            pa.array([row.truncated_tokens for row in rows], pa.int32()),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def measure_rows(self, batch: Any) -> Counts:
        """Return the tokens of each row."""
        return measure_lists(batch, "input_ids")

    def count_targets(self, batch: Any) -> Counts:
        """Return the learned tokens of each row."""
        return view_column(batch, "num_learned")

    def read_row(self, batch: Any, place: int) -> TokenRow:
        """Read the token ids and the learned mask of a row, each of shape `[length]`."""
        mask = read_list(batch, "learned", place).to_numpy(zero_copy_only=False)
        return read_list(batch, "input_ids", place).to_numpy(), mask


TOKEN_LAYOUT = TokenLayout()
