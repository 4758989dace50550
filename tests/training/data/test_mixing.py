"""The rows of several sources in an epoch, and the table that contains them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data.mixing import choose_rows, hold_out_rows, write_mix
from training.data.row_table import RowTable, RowWriter
from training.data.text.encoding import TokenSample
from training.data.text.token_layout import TOKEN_LAYOUT


def write_table(path: Path, first_token: int, num_rows: int) -> Path:
    with RowWriter(path, TOKEN_LAYOUT) as writer:
        for index in range(num_rows):
            ids = np.full(index % 3 + 2, first_token + index, dtype=np.int32)
            writer.write(TokenSample(index + 1, ids, np.ones(len(ids), dtype=np.bool_)))
    return path


def number_lines(*num_rows: int) -> list[Any]:
    return [np.arange(1, count + 1) for count in num_rows]


def test_weight_sets_repetitions_of_each_row() -> None:
    mix = choose_rows(number_lines(10, 10, 10, 10), [1, 3, 0.5, 2.5], 0, seed=1)
    counts = [np.bincount(rows, minlength=10) for rows in mix.train]
    assert counts[0].tolist() == [1] * 10
    assert counts[1].tolist() == [3] * 10
    assert sorted(counts[2]) == [0] * 5 + [1] * 5
    assert sorted(counts[3]) == [2] * 5 + [3] * 5
    assert all((np.diff(rows) >= 0).all() for rows in mix.train)
    assert [len(rows) for rows in mix.held_out] == [0] * 4


def test_choice_of_rows_depends_only_on_seed() -> None:
    def choose(seed: int) -> list[list[int]]:
        return [
            rows.tolist() for rows in choose_rows(number_lines(50, 50), [0.5, 0.5], 0, seed).train
        ]

    assert choose(1) == choose(1)
    assert choose(1) != choose(2)
    assert choose(1)[0] != choose(1)[1]


def test_held_out_rows_are_not_learned_for_any_weight() -> None:
    mix = choose_rows(number_lines(30, 10), [2, 0.5], 0.25, seed=3)
    assert sum(len(rows) for rows in mix.held_out) == 10
    for train, held_out in zip(mix.train, mix.held_out, strict=True):
        assert not set(train) & set(held_out)
    assert len(mix.train[0]) == 2 * (30 - len(mix.held_out[0]))


def test_samples_of_one_row_are_held_out_together() -> None:
    lines = np.repeat(np.arange(1, 21), 3)
    chosen = hold_out_rows(lines, 0.25, seed=1)
    assert chosen.sum() == 15
    assert len(np.unique(lines[chosen])) == 5
    mix = choose_rows([lines, lines], [1, 1], 0.25, seed=1)
    for train, held_out in zip(mix.train, mix.held_out, strict=True):
        assert not set(lines[train]) & set(lines[held_out])


def test_small_weight_keeps_at_least_one_row() -> None:
    assert [len(rows) for rows in choose_rows(number_lines(3, 0), [0.01, 0.01], 0, 0).train] == [
        1,
        0,
    ]


def test_mix_table_has_chosen_rows_and_names_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.data.row_table._BATCH_ROWS", 4)  # several record batches
    tables = [write_table(tmp_path / "a", 100, 10), write_table(tmp_path / "b", 200, 6)]
    chosen = [np.array([0, 3, 3, 4, 9]), np.array([5, 5])]
    write_mix(tables, chosen, ["a.jsonl", "b.jsonl"], tmp_path / "mix")
    table = RowTable(tmp_path / "mix", TOKEN_LAYOUT)
    assert [int(ids[0]) for ids, _ in table.read(range(7))] == [100, 103, 103, 104, 109, 205, 205]
    assert table.lengths.tolist() == [2, 2, 2, 3, 2, 4, 4]
    assert table.describe_rows([5, 0, 3]) == "line 6 of b.jsonl, lines 1, 5 of a.jsonl"
    assert table.describe_rows(list(range(7)) * 4).endswith(" and 8 more")
    assert RowTable(tables[0], TOKEN_LAYOUT).describe_rows([0, 3]) == "lines 1, 4"
