"""The rows of a run as tokens on disk, memory-mapped by every worker."""

from collections.abc import Sequence
from pathlib import Path

import datasets

from training.batching import MicroBatch, Step, collate_rows
from training.dataset import EncodedRow


def save_rows(rows: Sequence[EncodedRow], directory: Path) -> None:
    """Write encoded rows as an Arrow data set, in their order."""
    table = datasets.Dataset.from_dict(
        {
            "line": [row.line for row in rows],
            "input_ids": [row.input_ids for row in rows],
            "learned": [row.learned for row in rows],
        }
    )
    table.save_to_disk(str(directory))


class TokenRows:
    """Rows of tokens under `directory`; rows are named by their place, counted from 0."""

    def __init__(self, directory: Path) -> None:
        self._table = datasets.load_from_disk(str(directory))
        self.lengths: list[int] = []
        self._num_learned: list[int] = []
        for row in self._table:
            self.lengths.append(len(row["input_ids"]))
            self._num_learned.append(sum(row["learned"][1:]))

    def collate(self, indices: Sequence[int]) -> MicroBatch:
        """Make the padded micro batch of these rows; of none, one token that is not learned."""
        if not indices:
            return collate_rows([])
        rows = self._table[list(indices)]
        return collate_rows(list(zip(rows["input_ids"], rows["learned"], strict=True)))

    def count_learned(self, step: Step) -> int:
        """Tokens of a step, over all workers, that the loss counts."""
        return sum(self._num_learned[index] for index in step.rows)

    def count_tokens(self, step: Step) -> int:
        """Tokens of a step over all workers, padding left out."""
        return sum(self.lengths[index] for index in step.rows)

    def find_lines(self, step: Step) -> list[int]:
        """Lines of the file on which a step's rows stand."""
        return sorted(self._table[list(step.rows)]["line"])
