"""Mixing the token tables of several sources into one table, with rows repeated by weight.

The seed fixes the rows that an epoch has from each source before training: the table contains every
row as often as an epoch does, so batching and resuming do not depend on weights.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.row_table import SOURCES_KEY

Indices = npt.NDArray[np.int64]


class Mix(NamedTuple):
    """For each source, the rows to train on, repeated as in an epoch, and the rows held out."""

    train: list[Indices]
    held_out: list[Indices]


def hold_out_rows(numbers: Indices, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Choose a fraction of the rows by the seed, at least one; returns True for chosen rows.

    Rows with the same number are samples of one chat: all of them are chosen, or none. Both arrays
    have the shape `[num_rows]`.
    """
    found, group = np.unique(numbers, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(found))
    chosen = np.zeros(len(found), dtype=np.bool_)
    chosen[order[: max(1, round(len(found) * fraction))]] = True
    return chosen[group]


def choose_rows(
    numbers: Sequence[Indices], weights: Sequence[float], held_out_fraction: float, seed: int
) -> Mix:
    """Choose rows by the seed; `numbers[i]` are the numbers of the rows of source `i`.

    A fraction of all rows together is held out first. Of the other rows, a weight of 2.5 takes each
    row of its source twice, and half of them once more, the same rows in every epoch. A source
    contributes at least one row if any of its rows is not held out.
    """
    num_rows = [len(own) for own in numbers]
    is_held_out = np.zeros(sum(num_rows), dtype=np.bool_)
    if held_out_fraction:
        groups: list[Indices] = []
        num_groups = 0
        for own in numbers:
            found, group = np.unique(own, return_inverse=True)
            groups.append(group + num_groups)
            num_groups += len(found)
        is_held_out = hold_out_rows(np.concatenate(groups), held_out_fraction, seed)
    mix = Mix([], [])
    for place, part in enumerate(np.split(is_held_out, np.cumsum(num_rows)[:-1])):
        mix.held_out.append(np.flatnonzero(part))
        mix.train.append(_repeat(np.flatnonzero(~part), weights[place], [seed, place]))
    return mix


def _repeat(rows: Indices, weight: float, seed: list[int]) -> Indices:
    num_times = int(weight)
    num_more = round((weight - num_times) * len(rows))
    if num_times == 0 and len(rows):
        num_more = max(1, num_more)
    more = np.random.default_rng(seed).permutation(rows)[:num_more]
    return np.sort(np.concatenate([np.repeat(rows, num_times), more]))


def write_mix(
    tables: Sequence[Path], chosen: Sequence[Indices], names: Sequence[str], target: Path
) -> None:
    """Copy the chosen rows of tables into a new one, source by source.

    `chosen[i]` are rows of `tables[i]` in ascending order, with repetitions. The new table records
    the number of its rows from each source, under the names of the sources.
    """
    sizes = [[name, len(rows)] for name, rows in zip(names, chosen, strict=True)]
    columns = pa.ipc.open_file(pa.memory_map(str(tables[0]))).schema
    schema = columns.with_metadata({SOURCES_KEY: json.dumps(sizes)})
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for table, rows in zip(tables, chosen, strict=True):
            reader = pa.ipc.open_file(pa.memory_map(str(table)))
            start = 0
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                first, last = np.searchsorted(rows, [start, start + batch.num_rows])
                if first < last:
                    part = batch.take(pa.array(rows[first:last] - start))
                    writer.write_batch(pa.record_batch(part.columns, schema=schema))
                start += batch.num_rows
