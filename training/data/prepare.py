"""The rows of a fine-tune, from wherever they are to token tables on disk, or found in the cache.

Rows stream through, so memory does not grow with them. Every row is looked at before anything is
published.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from storage import durable
from training.base_model import choose_max_length, load_tokenizer
from training.byte_progress import OnBytes
from training.data.faults import DataError, RowRole
from training.data.formats import KNOWN_KEYS
from training.data.readers import HubRows, KnownFile, RowFile, RowSource
from training.data.row_stream import RowStream
from training.data.token_cache import MAX_CACHE_BYTES, build_entry, prune_cache, use_entry
from training.data.token_table import TokenTable, TokenWriter, split_table
from training.spec import DataFormat, HubDataset, TrainingSpec

TRAIN_TABLE, VALIDATION_TABLE, SUMMARY_FILE = "train.arrow", "validation.arrow", "summary.json"
# Part of every cache key: count it up when the same rows are to become other tokens.
_ENCODING_VERSION = 3
_COUNTS = (
    "num_rows",
    "num_tokens",
    "num_learned_tokens",
    "num_truncated_rows",
    "num_dropped_rows",
    "dropped_lines",
    "ignored_keys",
)
_LEFT_OUT = ("num_dropped_rows", "dropped_lines", "ignored_keys")
_PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True)
class PreparedData:
    """The token tables of a spec, complete files, and what a user wants to know about them.

    The summary says besides whether all tables were found: `cache`, 'hit' or 'miss'.
    """

    train: Path
    validation: Path | None
    summary: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The folder in the cache that holds the table of the training rows."""
        return self.train.parent


class _Entry(NamedTuple):
    """One entry of the cache, its counts, and whether it was there already."""

    folder: Path
    counts: Mapping[str, Any]
    is_hit: bool


def prepare_data(
    spec: TrainingSpec,
    cache: Path,
    on_progress: OnBytes | None = None,
    known: Mapping[str, KnownFile] | None = None,
    max_cache_bytes: int | None = MAX_CACHE_BYTES,
) -> PreparedData:
    """Check and tokenise the rows of a spec, or find what an earlier run made of the same.

    Each source of rows is an entry of the cache of its own, so that a file is tokenised once for a
    model, whatever it is used with. `known` has what is on record about files, by their paths.
    A new entry removes the longest unused ones beyond `max_cache_bytes`; with None it removes none.

    Raises `DataError` for rows that cannot be used, `UnknownModelError`, or `ValueError` for a
    length that the model has no positions for.
    """
    tokenizer, max_length = load_tokenizer(spec.base_model), choose_max_length(spec)
    build = _Build(spec, tokenizer, max_length, cache, max_cache_bytes)
    with _note_role("training"):
        train = open_train_source(spec, known)
        fingerprint = train.compute_fingerprint()
        train_bytes = train.measure()
    with _note_role("validation"):
        validation = _open_validation_source(spec, known)
        total_bytes = train_bytes + (validation.measure() if validation else 0)
    meter = _ByteMeter(total_bytes, on_progress)
    with _note_role("training"):
        entry = build.encode_source(train, meter)
        counts: dict[str, Any] = {**entry.counts, "validation": None}
        validation_table: Path | None = None
        if validation is None and spec.validation_fraction:
            entry = build.hold_out(entry, train.name)
            counts = dict(entry.counts)
            validation_table = entry.folder / VALIDATION_TABLE
    is_hit = entry.is_hit
    if validation is not None:
        with _note_role("validation"):
            held_out = build.encode_source(validation, meter, entry.counts["format"])
        counts["validation"] = {key: held_out.counts[key] for key in _COUNTS}
        validation_table = held_out.folder / TRAIN_TABLE
        is_hit = is_hit and held_out.is_hit
    # Of a data set on the hub there is only its own fingerprint.
    sha256 = fingerprint if spec.train_dataset is None else None
    summary = {
        **counts,
        "fingerprint": fingerprint,
        "name": train.name,
        "sha256": sha256,
        "cache": "hit" if is_hit else "miss",
    }
    return PreparedData(entry.folder / TRAIN_TABLE, validation_table, summary)


def link_data(prepared: PreparedData, run_data: Path) -> None:
    """Put the tables into a run's folder, by hard link where the file system allows it.

    So the run stays whole when the cache is emptied.
    """
    run_data.mkdir(parents=True, exist_ok=True)
    for table, name in ((prepared.train, TRAIN_TABLE), (prepared.validation, VALIDATION_TABLE)):
        (run_data / name).unlink(missing_ok=True)
        if table is not None:
            _link_file(table, run_data / name)
    summary = {key: value for key, value in prepared.summary.items() if key != "cache"}
    durable.write_json(run_data / SUMMARY_FILE, summary)


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        durable.fsync_file(target)


@contextmanager
def _note_role(role: RowRole) -> Iterator[None]:
    """Record in a `DataError` of the body which rows of the spec it is about."""
    try:
        yield
    except DataError as exc:
        exc.role = role
        raise


def open_train_source(spec: TrainingSpec, known: Mapping[str, KnownFile] | None) -> RowSource:
    """Open the rows that a spec learns from; nothing is read yet.

    `known` has what is on record about files, by their paths; errors name files as it does.
    """
    return _open_source(spec.train_file, spec.train_dataset, spec, known)


def _open_validation_source(
    spec: TrainingSpec, known: Mapping[str, KnownFile] | None
) -> RowSource | None:
    if spec.validation_file is None and spec.validation_dataset is None:
        return None
    return _open_source(spec.validation_file, spec.validation_dataset, spec, known)


def _open_source(
    file: str | None,
    dataset: HubDataset | None,
    spec: TrainingSpec,
    known: Mapping[str, KnownFile] | None,
) -> RowSource:
    if dataset is not None:
        return HubRows(dataset)
    assert file is not None  # the spec has one of the two
    names = (*KNOWN_KEYS, *spec.columns.values())
    return RowFile(Path(file), names, known=(known or {}).get(file), text_rows=spec.text_rows)


class _ByteMeter:
    """Reports how much of all sources has been read, a few times a second."""

    def __init__(self, total_bytes: int, on_progress: OnBytes | None) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._done_bytes = 0
        self._told_at = 0.0

    def report(self, position: int) -> None:
        """Report `position` bytes of the source that is being read, unless that was just done."""
        now = time.monotonic()
        if self._on_progress is not None and now - self._told_at >= _PROGRESS_INTERVAL_S:
            self._told_at = now
            self._on_progress(self._done_bytes + position, self._total_bytes)

    def finish_source(self, size_bytes: int) -> None:
        """Count a source as read, and report that in any case."""
        self._done_bytes += size_bytes
        self._told_at = 0.0
        self.report(0)


class _Build:
    """Makes the entries of the cache that a spec needs, each in one pass over its rows."""

    def __init__(
        self,
        spec: TrainingSpec,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        cache: Path,
        max_cache_bytes: int | None,
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._cache = cache
        self._max_cache_bytes = max_cache_bytes
        self._used: list[str] = []  # keys of entries that must not be pruned now

    def encode_source(
        self, source: RowSource, meter: _ByteMeter, fallback: DataFormat | None = None
    ) -> _Entry:
        """Find or make the table of a source; `fallback` is the format of rows without their own.

        Where the rows were encoded without a fallback before, they need none.
        """
        keys = [self._compute_key(source, None)]
        if fallback is not None:
            keys.append(self._compute_key(source, fallback))
        for key in keys:
            if use_entry(self._cache, key):
                meter.finish_source(source.measure())
                return self._take_entry(key, is_hit=True)
        with build_entry(self._cache, keys[-1]) as building:
            stream = RowStream(source, self._spec, self._tokenizer, self._max_length, fallback)
            table = building / TRAIN_TABLE
            with TokenWriter(table) as writer:
                for row in stream.encode(on_read=lambda: meter.report(source.position)):
                    writer.write(row)
            meter.finish_source(source.measure())
            head = {"format": stream.format, "max_length": self._max_length}
            durable.write_json(building / SUMMARY_FILE, {**head, **_count(table, stream)})
        return self._take_entry(keys[-1], is_hit=False)

    def hold_out(self, whole: _Entry, name: str) -> _Entry:
        """Find or make the tables of a share of the rows and of the others.

        Which ones, a permutation seeded with the spec's seed says; at least one row is on each
        side, and both keep their order.
        """
        parts = [whole.folder.name, self._spec.validation_fraction, self._spec.seed]
        key = _hash_parts({"split": parts, "version": _ENCODING_VERSION})
        if is_hit := use_entry(self._cache, key):
            return self._take_entry(key, is_hit=is_hit)
        table = whole.folder / TRAIN_TABLE
        num_rows = len(TokenTable(table))
        if num_rows < 2:
            raise DataError(
                f"{name}: {num_rows} row is too few to hold out a validation_fraction of "
                f"{self._spec.validation_fraction:g}; expected at least 2, or a validation_file"
            )
        num_held_out = max(1, round(num_rows * self._spec.validation_fraction))
        order = np.random.default_rng(self._spec.seed).permutation(num_rows)
        held_out = np.zeros(num_rows, dtype=np.bool_)
        held_out[order[:num_held_out]] = True
        with build_entry(self._cache, key) as building:
            tables = building / VALIDATION_TABLE, building / TRAIN_TABLE
            split_table(table, held_out, *tables)
            left_out = {key: whole.counts[key] for key in _LEFT_OUT}
            validation, train = (_count(path) for path in tables)
            counts = {**whole.counts, **train, **left_out, "validation": validation}
            durable.write_json(building / SUMMARY_FILE, counts)
        return self._take_entry(key, is_hit=False)

    def _take_entry(self, key: str, *, is_hit: bool) -> _Entry:
        self._used.append(key)
        if not is_hit and self._max_cache_bytes is not None:
            prune_cache(self._cache, self._used, self._max_cache_bytes)
        folder = self._cache / key
        return _Entry(folder, durable.read_json(folder / SUMMARY_FILE), is_hit)

    def _compute_key(self, source: RowSource, fallback: DataFormat | None) -> str:
        """Hash all that decides about the table of a source."""
        return _hash_parts(
            {
                "encoding": _ENCODING_VERSION,
                "packages": {name: version(name) for name in ("transformers", "tokenizers")},
                "rows": source.compute_fingerprint(),
                "tokenizer": self._tokenizer.backend_tokenizer.to_str(),
                "special_tokens": self._tokenizer.special_tokens_map,
                "chat_template": self._tokenizer.chat_template,
                "format": self._spec.format,
                "fallback": fallback,
                "columns": self._spec.columns,
                # It tells a CSV file from a TSV one, and plain text from both.
                "suffix": source.suffix if isinstance(source, RowFile) else "",
                "text_rows": self._spec.text_rows,
                "max_length": self._max_length,
                "overlong": self._spec.overlong,
            }
        )


def _hash_parts(parts: Mapping[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _count(path: Path, stream: RowStream | None = None) -> dict[str, Any]:
    """Count what is in a table, and what its stream left out."""
    table = TokenTable(path)
    return {
        "num_rows": len(table),
        "num_tokens": int(table.lengths.sum(dtype=np.int64)),
        "num_learned_tokens": int(table.num_learned.sum(dtype=np.int64)),
        "num_truncated_rows": table.count_truncated(),
        "num_dropped_rows": stream.num_dropped if stream else 0,
        "dropped_lines": stream.dropped_lines if stream else [],
        "ignored_keys": stream.ignored_keys.counts if stream else {},
    }
