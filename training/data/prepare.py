"""Preparation of the rows of a fine-tune as token tables on disk, or from the cache.

Rows are streamed, so memory does not grow with their number. Every row is checked before a table
is published.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storage import durable
from system.byte_progress import ByteMeter, OnBytes
from training.data.faults import DataError, IgnoredKeys, RowFaultLog, RowRole
from training.data.mixing import choose_rows, hold_out_rows, write_mix
from training.data.readers import KnownFile, RowFile, RowSource
from training.data.row_counts import RowCounts
from training.data.row_table import (
    RowTable,
    count_truncated,
    read_numbers,
    split_table,
)
from training.data.source_encoder import open_encoder
from training.data.sources import (
    WeightedSource,
    describe_sources,
    name_sources,
    open_train_sources,
    open_validation_sources,
)
from training.data.token_cache import MAX_CACHE_BYTES, build_entry, prune_cache, use_entry
from training.spec import TrainingSpec
from training.task import TaskData, find_task

TRAIN_TABLE, VALIDATION_TABLE, SUMMARY_FILE = "train.arrow", "validation.arrow", "summary.json"
# Part of every cache key: increment it when the same rows must become other tokens.
_ENCODING_VERSION = 6
_COUNTS = (
    "num_rows",
    "num_tokens",
    "num_learned_tokens",
    "num_truncated_rows",
    "num_dropped_rows",
    "dropped_lines",
    "num_split_rows",
    "ignored_keys",
)
_LEFT_OUT = ("num_dropped_rows", "dropped_lines", "num_split_rows", "ignored_keys")


@dataclass(frozen=True)
class PreparedData:
    """The complete token tables of a spec, and a summary of them for the user.

    The key `cache` of the summary is 'hit' if all tables were found in the cache, else 'miss'.
    """

    train: Path
    validation: Path | None
    summary: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The folder of the training rows' table in the cache."""
        return self.train.parent


class _Entry(NamedTuple):
    """One entry of the cache, its counts, and whether it already existed."""

    folder: Path
    counts: Mapping[str, Any]
    is_hit: bool

    @property
    def formats(self) -> list[str]:
        """The formats of its rows; a mix may have several."""
        formats: list[str] = self.counts["format"].split(", ")
        return formats


def prepare_data(
    spec: TrainingSpec,
    cache: Path,
    on_progress: OnBytes | None = None,
    known: Mapping[str, KnownFile] | None = None,
    max_cache_bytes: int | None = MAX_CACHE_BYTES,
) -> PreparedData:
    """Check and tokenise the rows of a spec, or find the tables of an earlier run with the same.

    Each source of rows has its own cache entry, so that a file is tokenised once for a model,
    whatever it is combined with. `known` has the records of files, by their paths. When an entry is
    added, the least recently used entries beyond `max_cache_bytes` are evicted; with None, none.

    Raises `DataError` for rows that cannot be used, `UnknownModelError`, or `ValueError` for a
    length that the model has no positions for. A loop of the user's own gets the rows as they are.
    """
    if spec.loop is not None:
        from training.own_loop.records import prepare_records  # it imports this module

        return prepare_records(spec, cache, on_progress, known, max_cache_bytes)
    data = find_task(spec.task).open_data(spec)
    build = _Build(spec, data, cache, max_cache_bytes)
    with set_role("training"):
        train = open_train_sources(spec, known)
        fingerprint = _compute_fingerprint(train)
        total_bytes = sum(one.source.measure() for one in train)
    with set_role("validation"):
        validation = open_validation_sources(spec, known)
        total_bytes += sum(one.source.measure() for one in validation)
    meter = ByteMeter(total_bytes, on_progress)
    with set_role("training"):
        fraction = 0.0 if validation else spec.validation_fraction
        entry = build.encode_sources(train, meter, max_rows=spec.max_rows, fraction=fraction)
    counts = {"validation": None, **entry.counts}
    validation_table = entry.folder / VALIDATION_TABLE if fraction else None
    is_hit = entry.is_hit
    if validation:
        with set_role("validation"):
            held_out = build.encode_sources(validation, meter, fallback=entry.formats[0])
        counts["validation"] = {key: held_out.counts[key] for key in _COUNTS}
        validation_table = held_out.folder / TRAIN_TABLE
        is_hit = is_hit and held_out.is_hit
    found = data.summarise(
        RowTable(entry.folder / TRAIN_TABLE, build.layout),
        RowTable(validation_table, build.layout) if validation_table else None,
    )
    # A data set on the hub has a fingerprint instead of a SHA-256.
    sha256 = fingerprint if spec.train_dataset is None else None
    summary = {
        **counts,
        **found,
        "fingerprint": fingerprint,
        "name": name_sources(train),
        "sha256": sha256,
        "cache": "hit" if is_hit else "miss",
    }
    return PreparedData(entry.folder / TRAIN_TABLE, validation_table, summary)


def _compute_fingerprint(sources: Sequence[WeightedSource]) -> str:
    """Return what identifies the rows: one file's hash, or a hash of all hashes and weights."""
    parts = [(one.source.compute_fingerprint(), one.weight) for one in sources]
    return parts[0][0] if _is_plain(sources) else hash_parts({"mix": parts})


def _is_plain(sources: Sequence[WeightedSource]) -> bool:
    return len(sources) == 1 and sources[0].weight == 1


@contextmanager
def set_role(role: RowRole) -> Iterator[None]:
    """Set the `role` of a `DataError` raised in the body."""
    try:
        yield
    except DataError as exc:
        exc.role = role
        raise


class _Build:
    """Builds the cache entries that a spec needs, each in one pass over its rows."""

    def __init__(
        self,
        spec: TrainingSpec,
        data: TaskData,
        cache: Path,
        max_cache_bytes: int | None,
    ) -> None:
        self._spec = spec
        self._data = data
        self._encoder = open_encoder(spec, data)
        self.layout = self._encoder.layout
        self._cache = cache
        self._max_cache_bytes = max_cache_bytes
        self._used: list[str] = []  # keys of entries that must not be pruned now

    def encode_sources(
        self,
        sources: Sequence[WeightedSource],
        meter: ByteMeter,
        fallback: str | None = None,
        max_rows: int | None = None,
        fraction: float = 0.0,
    ) -> _Entry:
        """Find or build the table of several sources; `fraction` holds out rows in a second one.

        `fallback` is the format of rows whose format is not recognised; for all sources but the
        first, the default is the format of the first. `max_rows` rows are read of each source.
        """
        entries: list[_Entry] = []
        for place, one in enumerate(sources):
            later = [other.source for other in sources[place + 1 :]] if fallback else []
            entries.append(self._encode_source(one.source, meter, fallback, max_rows, later))
            fallback = fallback or entries[0].formats[0]
        if not _is_plain(sources):
            return self._mix(sources, entries, fraction)
        return self._hold_out(entries[0], sources[0].source.name) if fraction else entries[0]

    def _encode_source(
        self,
        source: RowSource,
        meter: ByteMeter,
        fallback: str | None,
        max_rows: int | None,
        later: Sequence[RowSource],
    ) -> _Entry:
        """Find or build the table of one source; `later` ones follow with the same arguments.

        A table that was built without a fallback is also used with one.
        """
        keys = [self._compute_key(source, None, max_rows)]
        if fallback is not None:
            keys.append(self._compute_key(source, fallback, max_rows))
        for key in keys:
            if use_entry(self._cache, key):
                meter.finish_source(source.measure())
                return self._open_entry(key, is_hit=True)
        with build_entry(self._cache, keys[-1]) as building:
            table = building / TRAIN_TABLE
            encoded = self._encoder.encode([source, *later], fallback, max_rows, table, meter)
            meter.finish_source(source.measure())
            counts = {**encoded.description, **self._count(table, encoded.counts)}
            durable.write_json(building / SUMMARY_FILE, counts)
        return self._open_entry(keys[-1], is_hit=False)

    def _mix(
        self, sources: Sequence[WeightedSource], entries: Sequence[_Entry], fraction: float
    ) -> _Entry:
        """Find or build one table from several, with rows repeated by weight."""
        weights = [one.weight for one in sources]
        names = [one.source.name for one in sources]
        is_drawn = fraction or any(weight % 1 for weight in weights)
        parts = {
            "mix": [entry.folder.name for entry in entries],
            "weights": weights,
            "names": names,
            "groups": [[one.group, one.group_name] for one in sources],
            "fraction": fraction,
            "seed": self._spec.seed if is_drawn else None,
            "version": _ENCODING_VERSION,
        }
        key = hash_parts(parts)
        is_hit = all(entry.is_hit for entry in entries)
        if use_entry(self._cache, key):
            return self._open_entry(key, is_hit=is_hit)
        tables = [entry.folder / TRAIN_TABLE for entry in entries]
        numbers = [read_numbers(table) for table in tables]
        if fraction:
            num_rows = sum(len(np.unique(own)) for own in numbers)
            self._check_enough(num_rows, name_sources(sources))
        chosen = choose_rows(numbers, weights, fraction, self._spec.seed)
        with build_entry(self._cache, key) as building:
            write_mix(tables, chosen.train, names, building / TRAIN_TABLE)
            counts = {
                **_add_up([entry.counts for entry in entries]),
                **self._count(building / TRAIN_TABLE),
                **_add_up_left_out([entry.counts for entry in entries]),
            }
            counts["sources"] = describe_sources(
                sources, [len(rows) for rows in chosen.train], [entry.counts for entry in entries]
            )
            if fraction:
                write_mix(tables, chosen.held_out, names, building / VALIDATION_TABLE)
                counts["validation"] = self._count(building / VALIDATION_TABLE)
            durable.write_json(building / SUMMARY_FILE, counts)
        return self._open_entry(key, is_hit=False)

    def _check_enough(self, num_rows: int, name: str) -> None:
        """Raise `DataError` if there are too few rows to hold some of them out."""
        if num_rows < 2:
            raise DataError(
                f"{name}: {num_rows} row is too few to hold out a validation_fraction of "
                f"{self._spec.validation_fraction:g}; expected at least 2, or a validation_file"
            )

    def _hold_out(self, whole: _Entry, name: str) -> _Entry:
        """Find or build the tables of the held-out rows and of the other rows.

        A permutation with the spec's seed chooses the held-out rows; each table has at least one
        row, and both keep the order of rows.
        """
        parts = [whole.folder.name, self._spec.validation_fraction, self._spec.seed]
        key = hash_parts({"split": parts, "version": _ENCODING_VERSION})
        if is_hit := use_entry(self._cache, key):
            return self._open_entry(key, is_hit=is_hit)
        table = whole.folder / TRAIN_TABLE
        numbers = read_numbers(table)
        self._check_enough(len(np.unique(numbers)), name)
        held_out = hold_out_rows(numbers, self._spec.validation_fraction, self._spec.seed)
        with build_entry(self._cache, key) as building:
            tables = building / VALIDATION_TABLE, building / TRAIN_TABLE
            split_table(table, held_out, *tables)
            left_out = {key: whole.counts[key] for key in _LEFT_OUT}
            validation, train = (self._count(path) for path in tables)
            counts = {**whole.counts, **train, **left_out, "validation": validation}
            durable.write_json(building / SUMMARY_FILE, counts)
        return self._open_entry(key, is_hit=False)

    def _count(self, path: Path, read: RowCounts | None = None) -> dict[str, Any]:
        """Count the rows and tokens of a table, and the rows read that were left out."""
        table = RowTable(path, self.layout)
        return {
            "num_rows": len(table),
            "num_tokens": int(table.lengths.sum(dtype=np.int64)),
            "num_learned_tokens": int(table.num_targets.sum(dtype=np.int64)),
            "num_truncated_rows": count_truncated(table),
            **(read or RowCounts(RowFaultLog("", "line"))).describe(),
        }

    def _open_entry(self, key: str, *, is_hit: bool) -> _Entry:
        self._used.append(key)
        if not is_hit and self._max_cache_bytes is not None:
            prune_cache(self._cache, self._used, self._max_cache_bytes)
        folder = self._cache / key
        return _Entry(folder, durable.read_json(folder / SUMMARY_FILE), is_hit)

    def _compute_key(self, source: RowSource, fallback: str | None, max_rows: int | None) -> str:
        """Hash everything that determines the table of a source."""
        return hash_parts(
            {
                "encoding": _ENCODING_VERSION,
                "packages": {name: version(name) for name in ("transformers", "tokenizers")},
                "rows": source.compute_fingerprint(),
                "task": self._spec.task,
                **self._data.describe_inputs(),
                **self._encoder.describe_inputs(),
                "fallback": fallback,
                "max_rows": max_rows,
                "columns": self._spec.columns,
                # It distinguishes CSV, TSV and plain text.
                "suffix": source.suffix if isinstance(source, RowFile) else "",
                "text_rows": self._spec.text_rows,
                "max_length": self._data.max_length,
                "overlong": self._spec.overlong,
            }
        )


def hash_parts(parts: Mapping[str, Any]) -> str:
    """Return the key of a cache entry that these values determine."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _add_up(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the description of a mix: what its sources have in common."""
    formats = dict.fromkeys(one["format"] for one in counts)
    return {
        **counts[0],
        "format": ", ".join(formats),
        "has_end_token": all(one.get("has_end_token", True) for one in counts),
    }


def _add_up_left_out(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of rows left out of the sources of a mix."""
    ignored = IgnoredKeys()
    for one in counts:
        for name, num_rows in one["ignored_keys"].items():
            ignored.add([name], num_rows)
    return {
        "num_dropped_rows": sum(one["num_dropped_rows"] for one in counts),
        "num_split_rows": sum(one["num_split_rows"] for one in counts),
        "ignored_keys": ignored.counts,
    }
