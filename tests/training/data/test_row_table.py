from pathlib import Path

import numpy as np
import pytest

from training.data import row_table
from training.data.row_table import RowTable, RowWriter, count_truncated, split_table
from training.data.text.encoding import TokenSample
from training.data.text.token_layout import TOKEN_LAYOUT


def make_rows(num_rows: int) -> list[TokenSample]:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 40, num_rows)
    return [
        TokenSample(
            3 * index,
            random.integers(0, 50_000, length).astype(np.int32),
            random.random(length) < 0.5,
            truncated_tokens=index % 2,
        )
        for index, length in enumerate(lengths)
    ]


def write_table(path: Path, rows: list[TokenSample]) -> RowTable:
    with RowWriter(path, TOKEN_LAYOUT) as writer:
        for row in rows:
            writer.write(row)
    return RowTable(path, TOKEN_LAYOUT)


@pytest.mark.parametrize("batch_rows", [1, 7, 10_000])
def test_table_returns_written_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(row_table, "_BATCH_ROWS", batch_rows)
    rows = make_rows(50)
    table = write_table(tmp_path / "rows.arrow", rows)
    assert len(table) == 50
    assert table.lengths.tolist() == [len(row.input_ids) for row in rows]
    assert table.num_targets.tolist() == [row.num_targets for row in rows]
    assert table.lengths.dtype == table.num_targets.dtype == np.int32
    assert count_truncated(table) == 25
    order = [49, 0, 7, 7, 21]
    assert table.find_lines(order) == [3 * index for index in order]
    for index, (ids, learned) in zip(order, table.read(order), strict=True):
        assert ids.tolist() == rows[index].input_ids.tolist()
        assert learned.tolist() == rows[index].learned.tolist()
    for beyond in (50, -1):
        with pytest.raises(IndexError):
            table.read([beyond])


def test_table_may_be_empty(tmp_path: Path) -> None:
    table = write_table(tmp_path / "rows.arrow", [])
    assert (len(table), table.lengths.tolist(), table.read([])) == (0, [], [])


def test_split_table_keeps_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_table, "_BATCH_ROWS", 4)
    rows = make_rows(20)
    write_table(tmp_path / "rows.arrow", rows)
    chosen = np.arange(20) < 9
    chosen[15] = True
    split_table(tmp_path / "rows.arrow", chosen, tmp_path / "a.arrow", tmp_path / "b.arrow")
    for name, is_chosen in (("a", True), ("b", False)):
        table = RowTable(tmp_path / f"{name}.arrow", TOKEN_LAYOUT)
        indices = [index for index in range(20) if chosen[index] == is_chosen]
        assert table.find_lines(range(len(table))) == [3 * index for index in indices]
        assert table.num_targets.tolist() == [rows[index].num_targets for index in indices]
        read = table.read(range(len(table)))
        assert [ids.tolist() for ids, _ in read] == [rows[p].input_ids.tolist() for p in indices]
